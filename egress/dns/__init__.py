"""DNS: wire format, decisions, upstreams."""
