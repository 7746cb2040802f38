"""Kubernetes objects into entries: by name, over namespaces. Pure.

An object is what JSON gives for it. Servers are not trusted to send the fields that their schema promises: whatever is
missing or of another type makes a sandbox that is not ready, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ingress.providers import fields
from ingress.providers.fields import FieldError
from ingress.routes import Ambiguous, Entry, Sandbox

Object = Mapping[str, object]
Translate = Callable[[Object], Sandbox]
"""One object to a sandbox whose `id` is the object's name."""

TOKEN = "opensandbox.io/secure-access-token"  # noqa: S105 - the annotation's name
PORTS = "sallyport.dev/ports"
UPSTREAM_HOST = "sallyport.dev/upstream-host"


class Kind(NamedTuple):
    """A kind of objects that are sandboxes."""

    group: str
    versions: tuple[str, ...]
    """In order of preference; the first that the server knows is used."""
    plural: str
    translate: Translate

    @property
    def resource(self) -> str:
        """As `kubectl` names it."""
        return f"{self.plural}.{self.group}"


class NotAnObject(ValueError):
    """No object with a name: what the server sent can't be trusted to be in order."""


def mapping(value: object) -> Object:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """The value where it is text, else ""."""
    return value if isinstance(value, str) else ""


def metadata(item: object) -> Object:
    """An object's metadata. Raises NotAnObject where it has no name."""
    meta = mapping(mapping(item).get("metadata"))
    if not text(meta.get("name")):
        raise NotAnObject("an object without a name")
    return meta


def sandbox(item: Object, host: str, reason: str, addresses: tuple[str, ...] = ()) -> Sandbox:
    """A sandbox of what every kind shares: name, namespace, UID and annotations; ready where there is no `reason`.

    An annotation that can't be used makes it not ready: an unreadable token is not the absence of one.
    """
    meta = metadata(item)
    annotations = mapping(meta.get("annotations"))
    token, ports, shown_host = "", None, ""
    name = TOKEN
    try:
        token = fields.token(_annotation(annotations, TOKEN))
        name = PORTS
        ports = fields.ports(_annotation(annotations, PORTS))
        name = UPSTREAM_HOST
        shown_host = fields.upstream_host(_annotation(annotations, UPSTREAM_HOST))
    except FieldError as error:
        reason = reason or f"its annotation {name} can't be used: {error}"
    return Sandbox(
        id=text(meta.get("name")),
        host=host,
        ready=not reason,
        reason=reason,
        token=token,
        ports=ports,
        incarnation=text(meta.get("uid")),
        upstream_host=shown_host,
        namespace=text(meta.get("namespace")),
        addresses=addresses,
    )


def _annotation(annotations: Object, name: str) -> str:
    value = annotations.get(name, "")
    if not isinstance(value, str):
        raise FieldError("it isn't text")
    return value


class _Held(NamedTuple):
    sandbox: Sandbox
    version: int  # resourceVersion, -1 where it isn't a number


class Index:
    """The objects by name and namespace. What changes is answered with the names whose entries are to be set anew."""

    def __init__(self, translate: Translate) -> None:
        self._translate = translate
        self._names: dict[str, dict[str, _Held]] = {}

    def entry(self, name: str) -> Entry | None:
        """What routes of this name lead to; several namespaces have it: Ambiguous."""
        held = self._names.get(name)
        if not held:
            return None
        if len(held) == 1:
            return next(iter(held.values())).sandbox
        places = tuple(sorted(held))
        return Ambiguous(name, places, tuple(held[place].sandbox for place in places))

    def entries(self) -> list[Entry]:
        """All of them."""
        return [entry for name in self._names if (entry := self.entry(name)) is not None]

    def replace(self, items: Iterable[object], namespace: str = "") -> None:
        """Hold exactly these of the namespace; "": of all. Raises NotAnObject, and then nothing has changed."""
        new = [(metadata(item), mapping(item)) for item in items]
        for name in list(self._names):
            held = self._names[name]
            for place in [place for place in held if namespace in ("", place)]:
                del held[place]
            if not held:
                del self._names[name]
        for meta, item in new:
            self._put(meta, item)

    def put(self, item: object) -> str:
        """An object was added or changed; its name. An older version than the one held of that UID is passed over."""
        meta = metadata(item)
        name, place = text(meta.get("name")), text(meta.get("namespace"))
        held = self._names.get(name, {}).get(place)
        if held is not None and held.sandbox.incarnation == text(meta.get("uid")) and _number(meta) < held.version:
            return name  # a replay; comparing is what Kubernetes allows as long as they are numbers
        self._put(meta, mapping(item))
        return name

    def delete(self, item: object) -> str:
        """An object is gone; its name. Word of an earlier owner of the name doesn't take the present one away."""
        meta = metadata(item)
        self._drop(text(meta.get("name")), text(meta.get("namespace")), text(meta.get("uid")))
        return text(meta.get("name"))

    def _put(self, meta: Object, item: Object) -> None:
        name, place = text(meta.get("name")), text(meta.get("namespace"))
        if meta.get("deletionTimestamp"):
            self._drop(name, place, text(meta.get("uid")))
            return
        self._names.setdefault(name, {})[place] = _Held(self._translate(item), _number(meta))

    def _drop(self, name: str, place: str, uid: str) -> None:
        held = self._names.get(name, {})
        if place in held and held[place].sandbox.incarnation == uid:
            del held[place]
            if not held:
                del self._names[name]


def _number(meta: Object) -> int:
    version = text(meta.get("resourceVersion"))
    return int(version) if version.isascii() and version.isdigit() and len(version) < 30 else -1
