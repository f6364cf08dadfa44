"""Did the lock hold: *history → SAFE | VIOLATED | UNKNOWN | NOT TESTED*.

See README.md of this folder.
"""
