"""`tocsin namespaces`."""
