"""The machinery that every stage is built on."""
