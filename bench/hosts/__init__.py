"""Load from several hosts. The leader collects the data of workers on other hosts in one run
folder.

See the README beside this file.
"""
