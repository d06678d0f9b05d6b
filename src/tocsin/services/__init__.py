"""Use cases that the command line and the HTTP API share."""
