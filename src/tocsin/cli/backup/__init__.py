"""Commands that make, verify and restore backups."""
