"""The ticker stage."""
