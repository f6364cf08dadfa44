"""Judging what was measured: thresholds and paired comparisons. See README.md of this folder."""
