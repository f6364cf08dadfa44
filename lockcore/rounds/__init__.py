"""One command to all instances: *a command's bytes out, replies in → a settled round*.

Pure. This folder is compiled, so its files follow the rules of docs/lockcore/compiled.md.
"""
