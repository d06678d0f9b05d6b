"""`tocsin dev`."""
