"""Runs put together from the parts below: *a scenario → a judged result*.

Only cli and report know this package.
"""
