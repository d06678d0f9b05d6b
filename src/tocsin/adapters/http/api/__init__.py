"""The HTTP API of hip-62: one module for each resource."""
