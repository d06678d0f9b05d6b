"""Backups of an installation: the folder, and how it is made, verified and restored."""
