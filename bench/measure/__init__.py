"""The data of a run: the history of its operations, the statistics, and the file result.json.

See README.md of this folder.
"""
