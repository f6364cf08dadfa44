"""Load from several hosts: *messages from workers on other hosts → one record, as for one host*.

See the README beside this file.
"""
