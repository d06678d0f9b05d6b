"""What every stage is built on."""
