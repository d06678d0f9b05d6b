"""`tocsin executions`."""
