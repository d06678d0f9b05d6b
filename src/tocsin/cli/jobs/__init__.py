"""`tocsin jobs`, and the commands about schedules."""
