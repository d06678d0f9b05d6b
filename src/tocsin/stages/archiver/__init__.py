"""The archiver stage."""
