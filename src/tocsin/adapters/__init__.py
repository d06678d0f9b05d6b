"""Implementations of the ports, with a package for each technology."""
