"""Contains the command `capacity`, which answers the question how much load a fleet can take: *a
scenario and an SLO → probes → the capacity with its interval*."""
