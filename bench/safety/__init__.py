"""Did the lock hold: *history → SAFE | VIOLATED | UNKNOWN*. See README.md of this folder."""
