"""Agent keeper: registers worker processes, and notices those that fall silent."""
