"""Commands for the installation as a whole."""
