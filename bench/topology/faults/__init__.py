"""Faults that lockbench injects on purpose: *a fault of a scenario and a fleet → a fault that
lockbench begins and later ends*."""
