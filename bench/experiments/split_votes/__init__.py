"""This package measures how often votes split, for several numbers of contenders and spreads of
their starts.
"""
