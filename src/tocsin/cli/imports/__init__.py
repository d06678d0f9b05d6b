"""`tocsin import`."""
