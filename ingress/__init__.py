"""The ingress gateway: outside HTTP and WebSocket traffic, led to a sandbox's port."""
