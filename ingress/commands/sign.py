"""`ingress sign`: a signed route to a sandbox's port, for whoever has no access token."""

from __future__ import annotations

import os
import re
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from ingress.admission.access import to_base36
from ingress.admission.browser import ENTER, is_inner
from ingress.admission.routing import check_id
from ingress.commands.signing import ACTIVE, KEYS, CommandError, Parser, find_keys, read_expiry, run, shown, span
from ingress.settings.flags import safe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

FORMS = ("header", "host", "uri", "link", "host-link")
EPILOG = f"""\
keys: --keys-file, the variable {KEYS}, or --key (which other users of this machine can see
in its process list). With several, --key-id or {ACTIVE} says
which one signs. --expires: from now (90s, 1h, 7d), a time (2030-01-31T12:00:00Z) or Unix seconds.

examples:
  ingress sign --key a=c2VjcmV0... --expires 1h my-box 8080
      every form of one signed route: header, host name and path
  ingress sign --key a=c2VjcmV0... --form uri --base https://gw.example.com my-box 8080
      one URL and nothing else, for a script
  ingress sign --keys-file keys --expires 10m --form link --base https://gw.example.com --to /lab my-box 8888
      for a person: opened once, it gives the browser a cookie and a clean URL; host-link is the same by host name.
      It ends up to a tenth of its time sooner, so that no two links are the same

exit code: 0, or 2 where the call or a key is wrong.
"""
_BASE = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?")


class _Signed(NamedTuple):
    """One signed route."""

    sandbox: str
    port: int
    expires: str
    signature: str

    @property
    def token(self) -> str:
        return f"{self.sandbox}-{self.port}-{self.expires}-{self.signature}"


def main(argv: list[str]) -> int:
    """Print the route; returns the exit code."""
    return run("sign", lambda: _work(_parser().parse_args(argv), os.environ, time.time()))


def _parser() -> Parser:
    parser = Parser("ingress sign", "Make a signed route to a port of a sandbox.", EPILOG)
    parser.add_argument("--key-id", metavar="ID", default="", help="which of several keys signs")
    parser.add_argument("--expires", metavar="TIME", default="1h", help="until when it is good (default: 1h)")
    parser.add_argument("--form", choices=FORMS, default="", help="print only this form, without a word around it")
    parser.add_argument(
        "--base", metavar="URL", default="", help="where the gateway is, such as https://gw.example.com"
    )
    parser.add_argument("--to", metavar="PATH", default="/", help="the page inside the sandbox (default: /)")
    parser.add_argument("sandbox", metavar="SANDBOX")
    parser.add_argument("port", metavar="PORT")
    return parser


def _work(options: argparse.Namespace, environ: Mapping[str, str], now: float) -> tuple[int, str, list[str]]:
    problem = check_id(options.sandbox)
    if problem:
        raise CommandError(f"'{safe(options.sandbox)}' can't be a sandbox: {problem}")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", options.port) or int(options.port) > 65535:
        raise CommandError(f"'{safe(options.port)}' is not a port from 1 to 65535")
    if not is_inner(options.to.encode()):
        raise CommandError("--to is an absolute path such as /lab?reset, percent-encoded and without dot segments")
    ring = find_keys(options, environ)
    if not ring:
        raise CommandError(f"no key to sign with; give --key a=BASE64 or --keys-file FILE, or set {KEYS}")
    key_id = options.key_id or environ.get(ACTIVE, "").strip() or (ring.ids[0] if len(ring.ids) == 1 else "")
    if not key_id:
        raise CommandError(f"there are keys {', '.join(ring.ids)}; say with --key-id (or {ACTIVE}) which one signs")
    if ring.secret(key_id) is None:
        raise CommandError(f"there is no key '{safe(key_id)}'; there is {', '.join(ring.ids)}")
    until = read_expiry(options.expires, now)
    if "link" in options.form:
        # The second is all that tells two signatures apart, and a link's is used up: two made at once must differ.
        until -= secrets.randbelow(max(1, (until - int(now)) // 10))
    port = int(options.port)
    signed = _Signed(options.sandbox, port, to_base36(until), ring.sign(key_id, options.sandbox, port, until))
    remarks = []
    if key_id in ring.short:
        remarks.append(f"key {key_id!r} is short: whoever holds what it signed can search for it; use 32 random octets")
    if options.form:
        text = _form(options.form, signed, options.base, options.to)
        remarks += _host_remarks(signed, options.form) if "host" in options.form else []
        return 0, f"{text}\n", remarks
    lines = [(form, _form(form, signed, options.base, options.to)) for form in FORMS[:3] if _fits(form, signed)]
    lines += [("expires", f"{shown(until)}, in {span(until - int(now))}"), ("key", key_id)]
    remarks += _host_remarks(signed, "host")
    return 0, "".join(f"{name:<8} {text}\n" for name, text in lines), remarks


def _fits(form: str, signed: _Signed) -> bool:
    return form != "host" or ("." not in signed.sandbox and signed.sandbox == signed.sandbox.lower())


def _host_remarks(signed: _Signed, form: str) -> list[str]:
    """Why a host name may not do for this sandbox."""
    if not _fits("host", signed):
        return ["a host name has no case, and a dot in it ends the label: reach this sandbox by header or path"]
    label = signed.token if form == "host" else f"{signed.sandbox}-{signed.port}"
    if len(label) > 63:
        return [f"as a host name this is {len(label)} characters, and DNS has room for 63: use the header or the path"]
    return []


def _form(form: str, signed: _Signed, base: str, to: str) -> str:
    scheme, place = _base(base)
    origin = f"{scheme}://{place}" if place else ""
    sandbox, port, expires, signature = signed
    query = f"?e={expires}&s={signature}" + (f"&to={quote(to, safe='/')}" if to != "/" else "")
    if form == "header":
        return f"OpenSandbox-Ingress-To: {signed.token}"
    if form == "uri":
        return f"{origin}/{sandbox}/{port}/{expires}/{signature}{to}"
    if form == "link":
        return f"{origin}/{sandbox}/{port}{ENTER.decode()}{query}"
    if place.startswith("["):
        raise CommandError("--base is an address, and a host name can't be put before it")
    suffix = place or "example.com"
    if form == "host":
        return f"{scheme}://{signed.token}.{suffix}{to}"
    return f"{scheme}://{sandbox}-{port}.{suffix}{ENTER.decode()}{query}"


def _base(base: str) -> tuple[str, str]:
    """Scheme and authority of --base; an empty authority without it."""
    if not base:
        return "https", ""
    match = _BASE.fullmatch(base)
    if match is None:
        raise CommandError(f"--base '{safe(base)}' is not a gateway's URL; write https://gw.example.com")
    return match[1], match[2] + (match[3] or "")
