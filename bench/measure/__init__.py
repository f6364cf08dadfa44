"""The data of a run. It consists of the history of the operations, the statistics, and the file
result.json.

See README.md of this folder.
"""
