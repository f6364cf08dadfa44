"""This package contains the code of a run that works inside Locust: *a plan → operations on locks,
with one record for each operation*.

See the README beside this file.
"""
