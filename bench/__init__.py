"""Measurements of the sidecar beside programs that people know. `make bench-dns` runs `bench.dns`."""
