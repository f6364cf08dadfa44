"""This package contains the Grafana boards as code and as JSON files. It also contains the settings
of the collector, Prometheus and Grafana.

See README.md.
"""
