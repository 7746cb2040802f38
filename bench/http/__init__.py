"""`make bench-http`: the gateway beside nginx, haproxy, Go, Node and Python proxies, in one run, round after round."""
