"""How the tables came to be what they are: one revision a change, never edited once it is released."""
