"""This package handles all instances at once: *rounds → bytes to send; received bytes and the time
→ settled rounds*.

Pure. This folder is compiled, so its files follow the rules of docs/lockcore/compiled.md.
"""
