"""`tocsin agents`."""
