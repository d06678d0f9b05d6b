"""The size of the source in numbers, which may fall and never rise."""
