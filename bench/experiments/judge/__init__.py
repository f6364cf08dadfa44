"""Does your own lock hold? See README.md."""
