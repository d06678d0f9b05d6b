"""`tocsin top`: the state of an installation on one screen."""
