"""`tocsin notifications`."""
