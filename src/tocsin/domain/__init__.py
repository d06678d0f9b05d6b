"""The domain: events, states and decisions, without I/O, clock or randomness."""
