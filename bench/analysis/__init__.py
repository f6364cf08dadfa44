"""Pure statistics over results. See README.md of this folder."""
