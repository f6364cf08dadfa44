"""Shows results to human readers: on a terminal, in Markdown, on a page and in a progress line.

This package computes no figures.
"""
