"""How fast is the core, beside the ceiling and beside others? `make bench`, `make peers`."""
