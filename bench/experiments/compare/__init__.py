"""Is B worse than A? *sides → interleaved pairs → PASS, FAIL or not known; `compare` and
`gate`*."""
