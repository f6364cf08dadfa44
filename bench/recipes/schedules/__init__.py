"""Courses of events that make a recipe's flaw certain: *a recipe, servers → what was seen*. See ../README.md."""
