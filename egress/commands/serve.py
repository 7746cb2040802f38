"""`egress serve` with arguments: it takes none, and says so."""

from __future__ import annotations

import sys

HELP = """\
usage: egress serve

Guard the network namespace that this process is in, until SIGTERM. All settings come from the environment:

  OPENSANDBOX_EGRESS_RULES            the policy, as JSON: {"egress": [{"action": "allow", "target": "*.example.com"}]}
  OPENSANDBOX_EGRESS_POLICY_FILE      a policy file; changes made over HTTP are kept there
  OPENSANDBOX_EGRESS_TOKEN            the token that changes over HTTP need
  OPENSANDBOX_EGRESS_HTTP_ADDR        the control API (default :18080)
  OPENSANDBOX_EGRESS_DNS_UPSTREAM     resolvers, as addresses (default: those of /etc/resolv.conf)
  OPENSANDBOX_EGRESS_MODE             dns+nft (default), or dns: guard names only
  OPENSANDBOX_EGRESS_REQUIRE          nft, raw, token: refuse to start where that cannot be held

It needs CAP_NET_ADMIN in that namespace. Without a policy everything is denied. The full list is in docs/egress.md.
"""


def main(argv: list[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0
    print(f"egress serve takes no arguments (got {argv[0]!r}); settings come from the environment", file=sys.stderr)
    return 2
