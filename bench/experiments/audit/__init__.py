"""Which lock libraries hold? *a library and a schedule → a cell with its evidence*."""
