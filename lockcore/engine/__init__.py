"""This package handles all instances at once: *rounds in → bytes out; bytes and time in → settled
rounds*.

Pure. This folder is compiled, so its files follow the rules of docs/lockcore/compiled.md.
"""
