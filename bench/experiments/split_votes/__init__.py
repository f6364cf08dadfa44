"""This package measures how often votes split. The measurement varies the number of contenders and
the spread of their start times.
"""
