"""The egress sidecar."""
