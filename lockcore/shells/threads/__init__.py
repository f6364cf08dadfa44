"""Waiting by threads."""
