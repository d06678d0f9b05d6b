"""Commands that run a part of Tocsin in the foreground."""
