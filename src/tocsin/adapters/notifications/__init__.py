"""Channels that carry notifications out of Tocsin."""
