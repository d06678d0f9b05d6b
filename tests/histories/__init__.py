"""Logs that were once recorded. They must be readable, and fold to the same, for ever."""
