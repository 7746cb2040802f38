"""Requests, a gate and its clock, for tests of what is let in where."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from ingress.admission.access import KeyRing
from ingress.admission.gate import Gate, GateSettings
from ingress.admission.throttle import Throttle
from ingress.admission.verdict import Admission, Reply
from ingress.http1.head import Fields, RequestHead
from ingress.refusal import Refusal
from ingress.routes import Routes, Sandbox

NOW = 1_800_000_000.0
SECRET = b"0123456789abcdef0123456789abcdef"
KEYS = KeyRing({"a": SECRET, "b": b"another secret of thirty-two oct"})
ALL = frozenset(("header", "host", "uri"))
CLIENT = "198.51.100.7"


def base36(number: int) -> str:
    """Written anew for the tests, by repeated division."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = digits[number % 36]
    while number := number // 36:
        text = digits[number % 36] + text
    return text


def reference_signature(secret: bytes, key_id: str, sandbox: str, port: int, expires: str) -> str:
    """The contract's words, one by one: BE32(len(secret)) secret BE32(len(c)) c, SHA-256, 8 hex digits, key id."""
    c = b"v1\nshort\n" + sandbox.encode() + b"\n" + str(port).encode() + b"\n" + expires.encode() + b"\n"
    whole = bytes([0, 0, len(secret) >> 8, len(secret) & 255]) + secret + bytes([0, 0, len(c) >> 8, len(c) & 255]) + c
    return sha256(whole).hexdigest()[:8] + key_id


def ask(
    target: bytes | str = b"/", *lines: str, method: str = "GET", host: str | None = "gw.example.com", version: int = 11
) -> RequestHead:
    """A request's head. `lines`: further header lines."""
    raw = [*([f"Host: {host}"] if host is not None else []), *lines]
    fields = Fields([line.encode("latin-1") for line in raw])
    return RequestHead(
        method.encode(), target.encode("latin-1") if isinstance(target, str) else target, version, fields, 0
    )


class Signed(NamedTuple):
    """A route with a right signature."""

    sandbox: str
    port: int
    expires: str
    signature: str

    @property
    def token(self) -> str:
        return f"{self.sandbox}-{self.port}-{self.expires}-{self.signature}"

    @property
    def path(self) -> str:
        return f"/{self.sandbox}/{self.port}/{self.expires}/{self.signature}"

    @property
    def link(self) -> str:
        return f"/.sallyport/enter?e={self.expires}&s={self.signature}"


def signed(sandbox: str = "safe", port: int = 8080, until: float = NOW + 600, key_id: str = "a") -> Signed:
    expires = base36(int(until))
    secret = KEYS.secret(key_id)
    assert secret is not None
    return Signed(sandbox, port, expires, reference_signature(secret, key_id, sandbox, port, expires))


class House:
    """A gate with three sandboxes: `box` open, `safe` guarded, `late` guarded and not ready; and the time."""

    def __init__(self, mode: frozenset[str] = ALL, keys: KeyRing = KEYS, **settings: object) -> None:
        self.routes = Routes()
        self.routes.put(Sandbox("box", "10.0.0.1"))
        self.routes.put(Sandbox("safe", "10.0.0.2", token="the token"))
        self.routes.put(Sandbox("late", "10.0.0.3", ready=False, reason="it is starting", token="t"))
        self.throttle = Throttle(key=b"k" * 32)
        self.gate = Gate(GateSettings(mode, **settings), self.routes, keys, self.throttle)  # type: ignore[arg-type]
        self.now = NOW

    def admit(self, head: RequestHead, client: str = CLIENT, secure: bool = False) -> Admission:
        """It is let in."""
        found = self.gate.admit(head, client, secure, self.now)
        assert isinstance(found, Admission), found
        return found

    def reply(self, head: RequestHead, client: str = CLIENT, secure: bool = False) -> Reply:
        """The gateway answers it."""
        found = self.gate.admit(head, client, secure, self.now)
        assert isinstance(found, Reply), found
        return found

    def refused(self, head: RequestHead, client: str = CLIENT) -> Refusal:
        """It is refused."""
        try:
            found = self.gate.admit(head, client, False, self.now)
        except Refusal as refusal:
            return refusal
        raise AssertionError(f"let in: {found}")

    def status(self, head: RequestHead, client: str = CLIENT) -> int:
        """The refusal's status, the reply's, or 0 where it is let in."""
        try:
            found = self.gate.admit(head, client, False, self.now)
        except Refusal as refusal:
            return refusal.status
        return found.status if isinstance(found, Reply) else 0
