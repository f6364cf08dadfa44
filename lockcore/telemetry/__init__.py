"""Counts an application's operations on locks, with their durations, and takes samples."""
