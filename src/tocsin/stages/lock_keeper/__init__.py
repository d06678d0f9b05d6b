"""The lock keeper stage."""
