"""Guarding Docker's containers from outside, by way of the daemon's API.

api         the daemon over its unix socket: calls and the stream of events
entrance    into a running container's network, no other's, and by one of us at a time
containers  what an inspected container is, what speaks against guarding it, what its label says (pure)
network     the network that watched containers live on
gate        the host's rules: from that network only ports that are guarded already get anywhere
ward        one guarded container
register    the daemon followed: what every container that matters is now
watch       `egress docker watch`, all of it together
"""
