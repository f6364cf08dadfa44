"""Runs put together from the parts below: *a scenario → a judged result*.

Only frame and report know this package.
"""
