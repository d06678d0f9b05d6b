"""Revisions of the tables: one for each change, never edited after its release."""
