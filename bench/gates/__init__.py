"""Judges measurements by thresholds and verdicts. See README.md of this folder."""
