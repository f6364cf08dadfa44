"""The experiment: it loads a lock, records what happened, judges it and says so.

Layout: README.md in this folder.
"""
