"""The commands `tocsin events` and `tocsin audit`."""
