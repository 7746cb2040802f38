"""OpenSandbox's BatchSandbox objects as sandboxes. Pure.

Ready when `status.ready` is at least 1; the first of the pods' addresses that the annotation
`sandbox.opensandbox.io/endpoints` lists is used.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ingress.providers import fields
from ingress.providers.fields import FieldError
from ingress.providers.kubeobjects import Kind, mapping, metadata, sandbox, text
from policies.address import AddressError, format_address, parse_address

if TYPE_CHECKING:
    from ingress.providers.kubeobjects import Object
    from ingress.routes import Sandbox

ENDPOINTS = "sandbox.opensandbox.io/endpoints"


def translate(item: Object) -> Sandbox:
    """A BatchSandbox as a sandbox."""
    status = mapping(item.get("status"))
    ready = status.get("ready")
    if isinstance(ready, bool) or not isinstance(ready, int) or ready < 1:
        wanted = status.get("replicas")
        of = f" (0 of {wanted})" if isinstance(wanted, int) and not isinstance(wanted, bool) else ""
        return sandbox(item, "", f"none of its pods is ready{of}")
    try:
        addresses = _endpoints(mapping(metadata(item).get("annotations")).get(ENDPOINTS))
    except FieldError as error:
        return sandbox(item, "", f"its annotation {ENDPOINTS} {error}")
    return sandbox(item, addresses[0], "", addresses)


def _endpoints(value: object) -> tuple[str, ...]:
    """The addresses in the annotation, at least one; the first is checked, of the others those that are addresses."""
    if not text(value).strip():
        raise FieldError("is missing")
    try:
        listed = json.loads(text(value))
    except (ValueError, RecursionError):
        raise FieldError("isn't JSON") from None
    if not isinstance(listed, list):
        raise FieldError("isn't a list of addresses")
    if not listed:
        raise FieldError("lists no address")
    found = [_address(each) for each in listed]
    if not found[0]:
        raise FieldError(f"begins with {fields.shown(str(listed[0]))}, which is no address")
    return tuple(address for address in found if address)


def _address(value: object) -> str:
    try:
        return format_address(parse_address(text(value)))
    except AddressError:
        return ""


BATCHSANDBOX = Kind("sandbox.opensandbox.io", ("v1alpha1",), "batchsandboxes", translate)
