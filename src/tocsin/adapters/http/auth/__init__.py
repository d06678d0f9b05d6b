"""Authentication and authorization of HTTP requests."""
