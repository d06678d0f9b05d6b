"""The console in the browser: its files, and the session of its user.

The console uses the public HTTP API only. Its own routes give a browser what a program has already: its files, and a way to
keep a token (`auth.session`). They are no part of the OpenAPI document, and requests over NATS do not reach them.
"""
