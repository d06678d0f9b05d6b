"""What the SQL and the Redis history share, and how a URL chooses one of them."""
