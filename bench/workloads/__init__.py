"""This package is the Locust side of a run: *a plan → operations on locks, with one record for each
operation*.

See the README beside this file.
"""
