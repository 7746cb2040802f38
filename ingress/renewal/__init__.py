"""Renew intents: when one is due, and Redis."""
