"""`tocsin events` and `tocsin audit`."""
