"""What an operator chooses: flags and variables, read once, checked before anything listens."""
