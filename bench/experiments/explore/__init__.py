"""This package searches for a schedule that breaks a recipe. If no schedule breaks the recipe, the
result says how many schedules were played.

See README.md.
"""
