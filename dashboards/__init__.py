"""Grafana boards as code and as committed JSON, with the collector, Prometheus and provisioning.

See README.md.
"""
