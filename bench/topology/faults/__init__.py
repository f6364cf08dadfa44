"""Faults on purpose: *what a scenario orders, a fleet, a kind → something broken, and whole
again*."""
