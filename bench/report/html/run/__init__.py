"""The page of one run: *result → figures of latency, course, instances, safety*."""
