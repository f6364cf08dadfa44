"""Faults that lockbench injects on purpose: *the fault in a scenario, and a fleet → a part that
lockbench breaks and later repairs*."""
