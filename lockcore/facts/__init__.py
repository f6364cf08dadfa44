"""The facts and decisions of a lock as values.

Input: votes, handshakes and arguments. Output: outcomes, states and numbers.

Pure. This folder is compiled, so its files follow the rules of docs/lockcore/compiled.md.
"""
