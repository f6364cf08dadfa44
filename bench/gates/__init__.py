"""This package judges measurements by thresholds, and gives verdicts. See README.md of this
folder.
"""
