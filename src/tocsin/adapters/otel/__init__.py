"""OpenTelemetry: the way of spans to a trace store. It needs the extra `otel`."""
