"""Load from several hosts: *messages from workers elsewhere → one record, as if made here*.

See the README beside this file.
"""
