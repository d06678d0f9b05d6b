"""The recoverer stage."""
