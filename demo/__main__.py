"""`python -m demo`: watch the guard at work."""

from __future__ import annotations

import argparse
import json
import os
import sys

from demo.interrupt import Interrupted, interruptible
from demo.play import run
from demo.screen import Screen, silent, wants_colour
from lab import LabError, Lacking
from lab.rootless import become_root

UNEXPECTED, LACKING = 1, 3

DESCRIPTION = """\
Watch the guard at work: a sandbox, a tiny internet (DNS, web sites, a metadata address) and the real `egress serve`
between them, in network namespaces of their own. Nothing leaves this machine, and nothing stays on it.
"""
EPILOG = """\
examples:
  make demo                        installs what is needed, then shows it
  python -m demo --fast            without the pauses that let a person read along
  python -m demo --json | jq '.steps[] | [.title, .seen]'
                                   for a program

It needs Linux with nftables, and the programs ip, nft, curl and dig; `make setup` names what is missing. As root it
makes namespaces of its own; as an ordinary user it does so inside a user namespace. Ctrl-C ends it and cleans up.

exit code: 0 every step came out as expected; 1 some did not, or something broke (it says what); 2 this command line is
wrong; 3 this machine lacks something (it says what); 128 + N when signal N ended it.
"""


def main(argv: list[str]) -> int:
    """Run the command line; the exit code."""
    options = _parser().parse_args(argv)
    root = os.geteuid() == 0 and not os.environ.get("SALLYPORT_LAB_ROOTLESS")
    screen = silent()
    if not options.json:
        colour = wants_colour(sys.stdout, os.environ)
        screen = Screen(sys.stdout, colour=colour, paced=sys.stdout.isatty() and not options.fast)
    try:
        become_root()
        with interruptible():
            result = run(screen, root=root, unhurried=options.unhurried)
        if options.json:
            print(json.dumps(result.document(), indent=2))
        else:
            screen.table(result)
            screen.conclusion(result)
    except Interrupted as interrupted:
        print("demo: interrupted; everything is taken down", file=sys.stderr)
        return 128 + interrupted.number
    except Lacking as lacking:
        print(f"demo: this machine cannot show it: {lacking}", file=sys.stderr)
        return LACKING
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read along has left
        return UNEXPECTED
    except (LabError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return UNEXPECTED
    return UNEXPECTED if result.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--fast", action="store_true", help="no pauses; there are none either where nobody looks on")
    parser.add_argument(
        "--unhurried", action="store_true", help="no step fails for the time it took: for a machine that is busy"
    )
    parser.add_argument("--json", action="store_true", help="nothing but the result, as JSON, on standard output")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
