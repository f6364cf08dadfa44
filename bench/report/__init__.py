"""Results for human readers: *a result → terminal, Markdown, progress line*.

This package computes no figures.
"""
