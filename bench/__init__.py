"""Contains the experiment, which loads a lock, records each operation, judges the lock and reports
a verdict.

README.md in this folder describes the subfolders.
"""
