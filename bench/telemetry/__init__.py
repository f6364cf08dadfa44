"""The export of metrics and traces during a run: *history and notes → metrics and traces → OTLP,
Prometheus*.

See README.md.
"""
