"""Everything that a run reports while it runs: *history and notes → metrics and traces → OTLP,
Prometheus*.

See README.md.
"""
