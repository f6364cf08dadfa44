"""Counts an application's operations on locks: *operations → numbers, durations and samples*."""
