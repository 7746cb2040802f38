"""The guard at work, for a person to watch: `python -m demo`.

A sandbox namespace, a tiny internet (DNS and web sites at every address) and the real sidecar between them, all on this
machine. Every command on the screen is really typed into a shell in that sandbox, or into the operator's outside; every
step says what was expected and what came. The tests prove more; this shows.
"""
