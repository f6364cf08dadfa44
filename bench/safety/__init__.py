"""Judges whether the lock kept its holders apart: *history → SAFE | VIOLATED | UNKNOWN | NOT
TESTED*.

See README.md of this folder.
"""
