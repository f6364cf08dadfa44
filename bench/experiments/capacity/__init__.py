"""How much load can a fleet take? *scenario, SLO → probes → the capacity with its interval*."""
