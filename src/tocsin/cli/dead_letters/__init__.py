"""`tocsin dead-letters`: commands for dead letters."""
