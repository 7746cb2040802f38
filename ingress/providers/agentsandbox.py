"""Kubernetes agent-sandbox's Sandbox objects as sandboxes, and the names under which an id may be listed. Pure."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from ingress.providers import fields
from ingress.providers.fields import FieldError
from ingress.providers.kubeobjects import Kind, mapping, sandbox, text
from policies.address import AddressError, format_address, parse_address

if TYPE_CHECKING:
    from ingress.providers.kubeobjects import Object
    from ingress.routes import Sandbox

PREFIX = "sandbox"
_LONGEST = 63  # RFC 1035, 2.3.4
_INVALID = re.compile(r"[^a-z0-9-]+")
_HYPHENS = re.compile(r"-+")


def translate(item: Object) -> Sandbox:
    """A Sandbox object as a sandbox: ready when its condition Ready is True and it says where it is."""
    status = mapping(item.get("status"))
    addresses = _addresses(status.get("podIPs"))
    reason = _unready(status.get("conditions"))
    if reason:
        return sandbox(item, "", reason, addresses)
    name = text(status.get("serviceFQDN"))
    if not name:
        # newer controllers make no service where none is asked for
        return sandbox(item, addresses[0] if addresses else "", "" if addresses else "it has no address yet", addresses)
    try:
        return sandbox(item, fields.host(name), "", addresses)
    except FieldError as error:
        return sandbox(item, "", f"its status.serviceFQDN can't be used: {error}", addresses)


def _unready(conditions: object) -> str:
    """Why it isn't ready; "": it is."""
    for condition in conditions if isinstance(conditions, list) else ():
        condition = mapping(condition)
        if condition.get("type") != "Ready":
            continue
        if condition.get("status") == "True":
            return ""
        words = [text(condition.get(key)).strip() for key in ("reason", "message")]
        said = ": ".join(word for word in words if word)
        return f"it isn't ready ({_plain(said)})" if said else "it isn't ready"
    return "it doesn't say yet whether it is ready"


def _plain(words: str) -> str:
    """A controller's words on one printable line that isn't long."""
    line = "".join(char if char.isprintable() else " " for char in words)
    return line if len(line) <= 200 else line[:197] + "..."


def _addresses(value: object) -> tuple[str, ...]:
    found = []
    for each in value if isinstance(value, list) else ():
        try:
            found.append(format_address(parse_address(text(each))))
        except AddressError:
            pass
    return tuple(found)


@lru_cache(maxsize=4096)
def candidates(sandbox_id: str) -> tuple[str, ...]:
    """The names an id's object may have, in order: its DNS-1035 form, the id itself, the id after `sandbox-`."""
    names = (
        label(sandbox_id),
        sandbox_id,
        sandbox_id if sandbox_id.startswith("sandbox-") else f"sandbox-{sandbox_id}",
    )
    return tuple(dict.fromkeys(names))


def label(sandbox_id: str) -> str:
    """The id as a DNS-1035 label, as OpenSandbox's server makes the object's name of it.

    Lower case, other characters to hyphens, runs squeezed, ends trimmed; `sandbox-` before what doesn't start with a
    letter. What is over 63 characters is cut and, as what had nothing to keep, ends with 8 digits of the id's SHA-256.
    """
    name = _HYPHENS.sub("-", _INVALID.sub("-", sandbox_id.strip().lower())).strip("-")
    digest = hashlib.sha256(sandbox_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    if not name:
        name = f"{PREFIX}-{digest}"
    elif not name[0].isalpha():
        name = f"{PREFIX}-{name}"
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - len(digest) - 1].strip('-')}-{digest}"
    return name


AGENT_SANDBOX = Kind("agents.x-k8s.io", ("v1beta1", "v1alpha1"), "sandboxes", translate)
