"""Is B worse than A? *sides → interleaved pairs → PASS, FAIL or not known*. This folder holds the
commands `compare` and `gate`."""
