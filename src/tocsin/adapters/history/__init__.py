"""Parts that the SQL and the Redis history share, and the choice between them."""
