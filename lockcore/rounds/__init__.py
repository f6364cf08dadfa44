"""Sends one command to all instances and counts the replies.

Input: a command, and the bytes that the instances send. Output: bytes to send, and settled rounds.

Pure. This folder is compiled, so its files follow the rules of docs/lockcore/compiled.md.
"""
