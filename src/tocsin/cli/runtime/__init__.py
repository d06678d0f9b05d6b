"""Foundation of all commands: session, backend, errors and signals."""
