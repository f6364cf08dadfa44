"""Contains the commands that belong to no package of `bench.experiments`: *options → a run, a load,
servers, a report or a table*."""
