"""What is true: facts, states and decisions, without a clock, dice, or any input or output."""
