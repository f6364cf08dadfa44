"""Contains the command `audit`, which answers the question which lock libraries hold: *a library
and a schedule → a cell with its evidence*."""
