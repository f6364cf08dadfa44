"""Contains the command `audit`, which finds out which lock libraries are safe under which
schedules: *a library and a schedule → a cell with its evidence*."""
