"""How much can this fleet take? *scenario, SLO → probes → an answer with its bound*."""
