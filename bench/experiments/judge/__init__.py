"""The question whether a user's own lock holds. See README.md."""
