"""Commands about the installation as a whole."""
