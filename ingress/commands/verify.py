"""`ingress verify`: what a signed route or link says, in plain words, and whether it would be let in."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from ingress.admission.access import KeyRing, from_base36, sign
from ingress.admission.browser import is_enter, parse_link
from ingress.admission.routing import Route, by_host, by_path, inner_target, parse_authority, parse_token, signed_part
from ingress.commands.signing import KEYS, CommandError, Parser, find_keys, run, shown, span
from ingress.refusal import Refusal
from ingress.settings.flags import safe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

EPILOG = f"""\
keys: --key, --keys-file, or the variable {KEYS}. Without any it says what a route means, not whether it is right.

examples:
  ingress verify --keys-file keys my-box-8080-tkuhsg-0a1b2c3da
  ingress verify --keys-file keys https://gw.example.com/my-box/8080/tkuhsg/0a1b2c3da/
  ingress verify --keys-file keys 'https://gw.example.com/my-box/8080/.sallyport/enter?e=tkuhsg&s=0a1b2c3da'

exit code: 0 it lets in, 1 it does not, 2 it can't be read.
"""
_URL = re.compile(r"(https?)://([^/?#]*)([^#]*)(?:#.*)?", re.DOTALL)
_HEADER = re.compile(r"(?i)open-?sandbox-ingress(?:-to)?:[ \t]*(.*)", re.DOTALL)


def main(argv: list[str]) -> int:
    """Explain one; returns the exit code."""
    return run("verify", lambda: _work(_parser().parse_args(argv), os.environ, time.time()))


def _parser() -> Parser:
    parser = Parser("ingress verify", "Say what a signed route or link means, and whether it lets in.", EPILOG)
    parser.add_argument("route", metavar="ROUTE", help="a route token, a URL or a path")
    return parser


def _work(options: argparse.Namespace, environ: Mapping[str, str], now: float) -> tuple[int, str, list[str]]:
    form, route = read(options.route.strip())
    ring = find_keys(options, environ)
    good, lines = explain(form, route, ring, now)
    return (0 if good else 1), "".join(f"{name:<10} {text}\n" for name, text in lines), []


def read(text: str) -> tuple[str, Route]:
    """What form it has, and the route in it, signed where it can be read so. CommandError where it is none."""
    header = _HEADER.fullmatch(text)
    token = header[1] if header else text
    if not token.isascii():
        raise CommandError(f"'{safe(text)}' has characters outside ASCII, which no route has")
    url = _URL.fullmatch(token)
    authority, target = (url[2].encode(), url[3].encode() or b"/") if url else (b"", token.encode())
    if url is None and not token.startswith("/"):
        route = parse_token(token.encode())
        if route is None:
            raise CommandError(f"'{safe(text)}' is no route: it is neither <sandbox>-<port>..., a path nor a URL")
        return "a token for the routing header, or a host name's first label", route
    try:
        by_name = by_host(parse_authority(authority))
        found = by_path(target)
        if by_name is not None:
            return _linked(by_name, target, "a host name")
        if found is None:
            raise CommandError(f"'{safe(text)}' is no route: its path doesn't begin with /<sandbox>/<port>")
        route, end = found
        signed = signed_part(target, end)
        if signed is not None:
            return "a path", route._replace(expires=signed[0], signature=signed[1])
        return _linked(route, inner_target(target, end), "a path")
    except Refusal as fault:
        raise CommandError(f"'{safe(text)}' can't be read: {fault}") from None


def _linked(route: Route, inner: bytes, form: str) -> tuple[str, Route]:
    if not is_enter(inner):
        return form, route
    link = parse_link(inner)
    return f"a link for a browser, by {form.rpartition(' ')[2]}", route._replace(
        expires=link.expires, signature=link.signature
    )


def explain(form: str, route: Route, ring: KeyRing, now: float) -> tuple[bool, list[tuple[str, str]]]:
    """Does it let in, and what there is to say about it, line by line."""
    lines = [("form", form), ("sandbox", route.sandbox), ("port", str(route.port))]
    if not route.signature:
        lines.append(("signature", "none: this opens a sandbox that needs no access, or goes with its access token"))
        return False, lines
    until = from_base36(route.expires)
    if until is None:
        lines.append(("expires", f"never was good: '{safe(route.expires)}' is no base-36 number of at most 13 digits"))
        return False, lines
    left = until - int(now)
    when = f"in {span(left)}" if left >= 0 else f"expired {span(-left)} ago"
    lines.append(("expires", f"{shown(until)}, {when}"))
    right, words = _fits(route, ring)
    lines.append(("signature", words))
    if right:
        lines.append(("so", "it lets in until then, unless its link was used" if left >= 0 else "it let in once"))
    return right and left >= 0, lines


def _fits(route: Route, ring: KeyRing) -> tuple[bool, str]:
    """Is the signature right, whatever the time."""
    if not re.fullmatch(r"[0-9a-f]{8}[0-9a-z]", route.signature):
        return False, "malformed: eight hex digits and the key's id are wanted, in lower case"
    key_id = route.signature[8]
    if not ring:
        return False, f"by key {key_id}; whether it is right takes the keys: give --key or --keys-file"
    secret = ring.secret(key_id)
    if secret is None:
        return False, f"by key {key_id}, which is not among the keys here ({', '.join(ring.ids)})"
    if sign(secret, route.sandbox, route.port, route.expires) == route.signature[:8]:
        return True, f"right, by key {key_id}"
    other = [
        held
        for held in ring.ids
        if sign(ring.secret(held) or b"", route.sandbox, route.port, route.expires) == route.signature[:8]
    ]
    if other:
        return False, f"names key {key_id}, but key {other[0]} made it"
    return False, f"wrong: not made by the key {key_id} here for this sandbox, port and expiry"
