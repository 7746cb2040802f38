"""The packet side: ruleset, sets, flows."""
