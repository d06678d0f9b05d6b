"""The HTTP API of hip-62, with a module for each resource."""
