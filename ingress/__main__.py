"""`ingress`: the gateway's command. The gateway is not built yet, and the command says so."""

from __future__ import annotations

import sys


def main() -> int:
    """Say that there is no gateway yet; exit code 2, as for any request that cannot be met."""
    print("ingress: the gateway is not there yet; this release holds the egress sidecar only", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
