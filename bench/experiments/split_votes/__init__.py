"""The measurement of split votes: *N, K, spreads → rates with intervals*."""
