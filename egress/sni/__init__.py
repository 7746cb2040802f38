"""The name guard: which name a connection to a learned address is for, read from its first words. See docs/sni.md."""
