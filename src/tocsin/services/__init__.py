"""Use cases that the command line and the HTTP API share.

Each raises `LogUnavailable` if the log that it reads or writes does not answer.
"""
