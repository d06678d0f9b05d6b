"""What every command is built on."""
