"""This package searches for a schedule that breaks a recipe. If it finds none, it counts the
schedules that did not break the recipe.

See README.md.
"""
