"""The data that a run leaves behind: *operations → history → statistics → result.json*.

See README.md of this folder.
"""
