"""A result as a page: *result.json → one self-contained HTML file*.

See README.md of this folder.
"""
