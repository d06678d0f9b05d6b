"""`tocsin apply`."""
