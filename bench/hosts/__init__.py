"""Load from several hosts. Workers on other hosts send their data to the leader. The leader stores
the data of all workers in one folder.

See the README beside this file.
"""
