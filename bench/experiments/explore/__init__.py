"""Explores schedules: *a recipe → a schedule that breaks the recipe, or how many schedules did not
break it*.

See README.md.
"""
