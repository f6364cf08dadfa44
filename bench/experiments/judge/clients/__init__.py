"""This package holds drivers for the audited Python libraries and for locks with a planted fault.
Each driver runs in a process of its own.
"""
