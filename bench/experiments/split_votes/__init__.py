"""Measures split votes: *N, K, spreads → rates with intervals*."""
