"""The checks, one module for each part that is looked at."""
