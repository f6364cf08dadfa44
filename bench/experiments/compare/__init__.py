"""Contains the commands `compare` and `gate`, which ask whether B is worse than A: *the sides →
interleaved pairs of runs → PASS, FAIL or not known*."""
