"""Contains the commands that ask no question about a lock: *options → a run, a load, servers, a
report or a table*."""
