"""The webhook's certificate: one TLS context that follows its two files, as Kubernetes swaps them in a mounted Secret.

A changed pair is tried on a context of its own first: loaded straight into the live one, a certificate whose key has
not come yet would leave it with neither. Both files are read once and loaded from memory, so what was tried is what
is used.
"""

from __future__ import annotations

import os
import ssl
from typing import NamedTuple

_LARGEST = 1 << 20


class CertificateError(ValueError):
    """A pair that cannot be served with; the text names the file and says why."""


class _Pair(NamedTuple):
    certificate: bytes
    key: bytes


class Certificate:
    """The two files, and the context made of them. Raises CertificateError where they cannot be used."""

    def __init__(self, certificate: str, key: str) -> None:
        self._paths = (certificate, key)
        self._pair = self._read()
        self.context = _server()
        _load(self.context, self._pair)

    def follow(self) -> bool:
        """Take the files' new content, if there is any. Raises CertificateError; the old one then serves on."""
        pair = self._read()
        if pair == self._pair:
            return False
        _load(_server(), pair)
        _load(self.context, pair)
        self._pair = pair
        return True

    def _read(self) -> _Pair:
        texts = []
        for path in self._paths:
            try:
                with open(path, "rb") as file:
                    texts.append(file.read(_LARGEST))
            except OSError as error:
                raise CertificateError(f"{path}: {(error.strerror or str(error)).lower()}") from None
            if b"-----BEGIN " not in texts[-1]:
                raise CertificateError(f"{path}: is not PEM (-----BEGIN ...)")
        return _Pair(*texts)


def _server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, pair: _Pair) -> None:
    """The ssl module loads from files: these are in memory."""
    files: list[int] = []
    try:
        for name, text in zip(_Pair._fields, pair, strict=True):
            fd = os.memfd_create(name)
            files.append(fd)
            with open(os.dup(fd), "wb") as file:
                file.write(text)
        certificate, key = (f"/proc/self/fd/{fd}" for fd in files)
        context.load_cert_chain(certificate, key, password=_encrypted)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateError("certificate and key do not belong together") from None
        why = (error.reason or str(error)).lower().replace("_", " ")
        raise CertificateError(f"certificate or key cannot be used: {why}") from None
    except OSError as error:  # no descriptors left, say: the next look may find some
        raise CertificateError(f"cannot be loaded: {(error.strerror or str(error)).lower()}") from None
    finally:
        for fd in files:
            os.close(fd)


def _encrypted() -> str:
    raise CertificateError("the key is encrypted, and nobody is here to type a passphrase; decrypt it (openssl pkey)")
