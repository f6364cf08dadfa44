"""Faults on purpose: *a scenario's order, a fleet, a kind → a broken part, later repaired*."""
