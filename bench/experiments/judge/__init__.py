"""This package tests whether a user's own lock is safe. See README.md."""
