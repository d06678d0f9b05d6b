"""`tocsin policy`."""
