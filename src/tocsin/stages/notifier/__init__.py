"""Notifier: notifies people by channels."""
