"""Which lock libraries hold? *A library and a schedule → a cell with its evidence*."""
