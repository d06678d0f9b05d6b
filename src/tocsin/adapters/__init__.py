"""How it is done: each package implements the ports on one technology."""
