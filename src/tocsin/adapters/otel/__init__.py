"""OpenTelemetry: the export of spans (extra `otel`) and the metrics of a process (extra `metrics`)."""
