"""Access tokens and signatures. Pure; the time is an argument.

A signature is eight hex digits and a key's id, one character of 0-9a-z:

    c = "v1\\nshort\\n<sandbox>\\n<port>\\n<expires in base 36>\\n"
    SHA-256(BE32(len(secret)) + secret + BE32(len(c)) + c), its first four octets in hex, then the id

Two ids at once are how keys are rotated: sign with the new one, keep the old one until what it signed has expired.
Comparisons take the same time for every wrong value. What 32 bits are worth is the throttle's matter (`throttle.py`).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCESS_HEADER = b"opensandbox-secure-access"
SHORT_SECRET = 16
"""Octets below which a secret can be searched by whoever holds something that it signed."""

_KEY_ID = re.compile(r"[0-9a-z]")
_EXPIRES = re.compile(r"0|[1-9a-z][0-9a-z]{0,12}")
_SIGNATURE = re.compile(r"[0-9a-f]{8}[0-9a-z]")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class BadKeys(ValueError):
    """Keys that can't be used. The text names the key and the fault, never the secret."""


def canonical(sandbox: str, port: int, expires: str) -> bytes:
    """What is signed; `expires` in base 36."""
    return f"v1\nshort\n{sandbox}\n{port}\n{expires}\n".encode()


def sign(secret: bytes, sandbox: str, port: int, expires: str) -> str:
    """The eight hex digits of a signature; `expires` in base 36, without the key's id."""
    message = canonical(sandbox, port, expires)
    framed = len(secret).to_bytes(4, "big") + secret + len(message).to_bytes(4, "big") + message
    return sha256(framed).hexdigest()[:8]


def to_base36(number: int) -> str:
    """Lower case, no leading zero; `0` for zero. `number` is not negative."""
    digits = ""
    while True:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
        if not number:
            return digits


def from_base36(text: str) -> int | None:
    """Unix seconds; None for what is no number of at most 13 digits in its one spelling."""
    if not _EXPIRES.fullmatch(text):
        return None
    return int(text, 36)


def is_signature(text: str) -> bool:
    """Has it a signature's shape."""
    return _SIGNATURE.fullmatch(text) is not None


def token_equals(sent: bytes, token: str) -> bool:
    """Is the value of the access header the sandbox's token; blanks around either don't count."""
    return hmac.compare_digest(sent.strip(), token.strip().encode())


class KeyRing:
    """The keys by id. Immutable: new keys are a new ring."""

    __slots__ = ("_secrets",)

    def __init__(self, secrets: dict[str, bytes] | None = None) -> None:
        for key_id, secret in (secrets or {}).items():
            if not _KEY_ID.fullmatch(key_id) or not secret:
                raise BadKeys("a key's id is one character of 0-9a-z, and its secret is not empty")
        self._secrets = dict(secrets or {})

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """`a=BASE64,b=BASE64`, or a line for each, with `#` comments, as in a file. BadKeys where it can't be read."""
        secrets: dict[str, bytes] = {}
        for number, part in enumerate(_parts(text), 1):
            name, equals, value = part.partition("=")
            name = name.strip()
            if not equals or not _KEY_ID.fullmatch(name):
                # Without its `=` the part may be the secret itself.
                raise BadKeys(
                    f"entry {number} is not ID=BASE64 with an id of one character of 0-9a-z, such as a=c2Vj..."
                )
            if name in secrets:
                raise BadKeys(f"key {name!r} is given twice")
            secrets[name] = _decode(name, value.strip())
        if not secrets:
            raise BadKeys("no key in it; write ID=BASE64, several joined by commas")
        return cls(secrets)

    def __bool__(self) -> bool:
        """Is there a key at all."""
        return bool(self._secrets)

    def __eq__(self, other: object) -> bool:
        """Same ids, same secrets."""
        return isinstance(other, KeyRing) and self._secrets == other._secrets

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """The ids, never the secrets."""
        return f"KeyRing({', '.join(sorted(self._secrets))})"

    @property
    def ids(self) -> tuple[str, ...]:
        """The keys' ids, sorted."""
        return tuple(sorted(self._secrets))

    @property
    def short(self) -> tuple[str, ...]:
        """Ids of the keys that are short enough to be searched offline: worth a warning."""
        return tuple(key_id for key_id in self.ids if len(self._secrets[key_id]) < SHORT_SECRET)

    def secret(self, key_id: str) -> bytes | None:
        """A key's secret."""
        return self._secrets.get(key_id)

    def sign(self, key_id: str, sandbox: str, port: int, expires: int) -> str:
        """A whole signature, nine characters; `expires` in Unix seconds. KeyError for an id that is not there."""
        return sign(self._secrets[key_id], sandbox, port, to_base36(expires)) + key_id

    def verify(self, sandbox: str, port: int, expires: str, signature: str, now: float) -> bool:
        """Is this signature good at `now`: in shape, by a key we hold, the right one, and not expired.

        An unknown key takes as long as a known one: which ids there are is not to be measured either.
        """
        until = from_base36(expires)
        if until is None or not is_signature(signature):
            return False
        secret = self._secrets.get(signature[8])
        wanted = sign(secret or b"\0" * 32, sandbox, port, expires)
        right = hmac.compare_digest(wanted, signature[:8])
        return right and secret is not None and int(now) <= until


def _parts(text: str) -> Iterator[str]:
    for line in text.splitlines():
        for part in line.partition("#")[0].split(","):
            if part.strip():
                yield part.strip()


def _decode(name: str, value: str) -> bytes:
    try:
        secret = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        hint = "; - and _ are of another alphabet, write + and /" if re.search("[-_]", value) else ""
        raise BadKeys(f"key {name!r} is not base64 with its padding{hint}") from None
    if not secret:
        raise BadKeys(f"key {name!r} has no secret")
    return secret
