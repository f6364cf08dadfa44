"""All locks under test. Every lock has the same interface (protocol.py). See the README beside this
file."""
