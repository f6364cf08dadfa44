"""All locks under test, behind one protocol. See the README beside this file."""
