"""What `ingress` can be asked to do, one module for each command."""
