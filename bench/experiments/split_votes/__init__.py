"""How often does no contender win a lock? *N, K, spreads → rates with intervals*."""
