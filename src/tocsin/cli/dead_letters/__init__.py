"""`tocsin dead-letters`."""
