"""The stage `event_listener`."""
