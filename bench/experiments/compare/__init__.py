"""The commands `compare` and `gate`. They ask whether B is worse than A: *sides → interleaved pairs
→ PASS, FAIL or not known*."""
