"""Stored messages of the log: read from the streams, written to a file, read back."""
