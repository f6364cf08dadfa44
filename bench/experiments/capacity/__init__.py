"""The question how much load a fleet can take: *scenario, SLO → probes → the capacity with its
interval*."""
