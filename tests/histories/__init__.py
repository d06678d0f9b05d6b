"""Recorded logs. They must stay decodable and fold to the same state in every version."""
