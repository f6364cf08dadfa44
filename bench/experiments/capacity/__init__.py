"""How much load can this fleet take? *scenario, SLO → probes → the capacity with its interval*."""
