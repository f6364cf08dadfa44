"""Runs put together from the parts below: *a scenario → a judged result*.

Only the table `bench.questions` and the program above it know this package.
"""
