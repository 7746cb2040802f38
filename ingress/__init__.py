"""The ingress gateway."""
