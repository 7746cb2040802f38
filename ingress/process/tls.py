"""TLS on the client's side: one context for all connections, which follows its files.

A changed pair is tried on a context of its own first, because a certificate without its key would leave the live one
with neither; a pair that won't do is reported once and the one before serves on. Both files are read once and loaded
from memory, so what was tried is what is loaded, whatever happens to the files meanwhile.

The context is made before the workers are forked: they share the key of session tickets, so a client may resume its
session with any of them.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

from ingress.process.listeners import StartError

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST = 1 << 20

Signature = tuple[tuple[int, int, int, int] | None, ...]


class TlsError(ValueError):
    """A certificate and key that can't be served with; the text names the file and says why."""


class Certificate:
    """The pair of files, and the context that is kept true to them."""

    def __init__(self, certificate: str, key: str) -> None:
        """Raises StartError where the pair can't be used."""
        self._paths = (certificate, key)
        self._seen = self._signature()
        self.context = _fresh()
        try:
            _load(self.context, *self._read())
        except TlsError as error:
            raise StartError(f"--tls-cert: {error}") from None

    def follow(self, say: Callable[[str, str], None], *, force: bool = False) -> str:
        """Load the files again where they have changed; to be called about once a second.

        say: level and sentence. Returns "ok", "failed", or "" where nothing was done.
        """
        seen = self._signature()
        if seen == self._seen and not force:
            return ""
        self._seen = seen
        try:
            certificate, key = self._read()
            _load(_fresh(), certificate, key)
            _load(self.context, certificate, key)
        except TlsError as error:
            say("error", f"the new certificate is not used, the one before serves on: {error}")
            return "failed"
        say("info", f"certificate loaded from {self._paths[0]}")
        return "ok"

    def _signature(self) -> Signature:
        """What changes when a file does; through links, as secrets that Kubernetes mounts are swapped by one."""
        found: list[tuple[int, int, int, int] | None] = []
        for path in self._paths:
            try:
                about = os.stat(path)
            except OSError:
                found.append(None)
            else:
                found.append((about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size))
        return tuple(found)

    def _read(self) -> tuple[bytes, bytes]:
        texts = []
        for path in self._paths:
            try:
                with open(path, "rb") as file:
                    texts.append(file.read(_LARGEST))
            except OSError as error:
                raise TlsError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        certificate, key = texts
        if b"-----BEGIN CERTIFICATE-----" not in certificate:
            raise TlsError(f"{self._paths[0]} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)")
        if b"PRIVATE KEY-----" not in key:
            raise TlsError(f"{self._paths[1]} holds no private key in PEM (-----BEGIN PRIVATE KEY-----)")
        return certificate, key


def _fresh() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """The ssl module loads from files only: files in memory, then. Raises TlsError."""
    certificate_file, key_file = os.memfd_create("certificate"), os.memfd_create("key")
    try:
        for descriptor, text in ((certificate_file, certificate), (key_file, key)):
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(text)
        context.load_cert_chain(f"/proc/self/fd/{certificate_file}", f"/proc/self/fd/{key_file}", password=_refuse)
    except ssl.SSLError as error:
        raise TlsError(_words(error)) from None
    except OSError as error:
        raise TlsError(f"cannot be loaded: {(error.strerror or str(error)).lower()}") from None
    finally:
        os.close(certificate_file)
        os.close(key_file)


def _refuse() -> str:
    raise TlsError("the key is encrypted, and nobody is here to type a passphrase; decrypt it (openssl pkey)")


def _words(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "certificate and key do not belong together"
    if error.reason in ("EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"):
        return f"the certificate is too weak for this OpenSSL ({error.reason.lower().replace('_', ' ')})"
    return f"certificate or key cannot be read ({(error.reason or str(error)).lower().replace('_', ' ')})"
