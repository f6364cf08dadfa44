"""A run that can be watched: *scenario → the run with Prometheus around it, every panel answered*."""
