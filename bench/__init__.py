"""The experiment: it loads a lock, records each operation, judges the lock and reports a verdict.

README.md in this folder describes the layout.
"""
