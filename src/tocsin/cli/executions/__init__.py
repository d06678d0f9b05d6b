"""`tocsin executions`: commands for executions, and the lists of the history."""
