"""Boards as code and as committed JSON, and what feeds them: collector, Prometheus, provisioning.

See README.md.
"""
