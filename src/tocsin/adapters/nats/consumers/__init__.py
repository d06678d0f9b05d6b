"""Consumers: how stages, workers and followers receive messages."""
