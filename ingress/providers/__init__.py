"""Where the gateway learns which sandboxes there are, one module for each source."""
