"""The ports in memory: no server, no real time. They refuse exactly what the real ones refuse (`tests/conformance`)."""
