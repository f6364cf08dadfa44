"""The page of a result: *result.json → one self-contained HTML file*.

See README.md of this folder.
"""
