"""The safety judge, which checks whether the lock kept conflicting holders apart: *history → SAFE |
VIOLATED | UNKNOWN | NOT TESTED*.

See README.md of this folder.
"""
