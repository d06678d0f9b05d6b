"""The checks of `tocsin doctor`."""
