"""Processes and sockets: the master, its workers, hand-over, TLS and PROXY headers."""
