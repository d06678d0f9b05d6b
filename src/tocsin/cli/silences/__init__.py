"""`tocsin silences`."""
