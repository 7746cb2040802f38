"""What is fuzzed, one parser a module."""
