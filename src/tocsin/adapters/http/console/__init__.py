"""The console in the browser: its files, and the session of its user."""
