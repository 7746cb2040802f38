"""`ingress serve`: the gateway."""

from __future__ import annotations

import gc
import os
import sys


def main(argv: list[str]) -> int:
    """Run the gateway until SIGTERM; returns the exit code."""
    if any(word in ("-h", "--help", "-help") for word in argv):
        from ingress.settings.table import usage

        sys.stdout.write(usage())
        return 0
    gc.disable()  # nothing that is imported is garbage; the workers turn it on again
    from ingress.process.start import serve

    return serve(argv, os.environ)
