"""The reports of a run while it runs: *history and notes → metrics and traces → OTLP, Prometheus*.

See README.md.
"""
