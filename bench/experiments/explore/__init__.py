"""Explore every schedule: *a recipe → a schedule that breaks it, or how many did not*.

See README.md.
"""
