"""How often does nobody win? *N, K, spreads → rates with intervals*."""
