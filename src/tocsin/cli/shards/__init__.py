"""`tocsin shards`."""
