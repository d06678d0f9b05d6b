"""`tocsin jobs`, and the commands about one schedule."""
