"""The recorder: the history, and the traces of executions that are over."""
