"""The control API and what it changes."""
