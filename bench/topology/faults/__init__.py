"""Faults that lockbench injects on purpose: *an order of a scenario, a fleet, a kind → a broken
part, which is repaired later*."""
