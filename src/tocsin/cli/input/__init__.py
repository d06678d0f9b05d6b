"""Reading values that users type."""
