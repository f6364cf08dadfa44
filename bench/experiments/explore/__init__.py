"""The exploration of schedules: *a recipe → a schedule that breaks it, or the number of schedules
that did not*.

See README.md.
"""
