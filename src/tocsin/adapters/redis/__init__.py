"""The history in Redis, for installations without a SQL database: same rows, lists and guarantees."""
