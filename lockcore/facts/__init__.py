"""Facts and decisions of a lock, as values: *votes, hellos, arguments → names and numbers*.

Pure. This folder is compiled, so its files follow the rules of docs/lockcore/compiled.md.
"""
