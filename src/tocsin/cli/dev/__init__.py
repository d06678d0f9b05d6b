"""The command `tocsin dev`."""
