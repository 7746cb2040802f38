"""Loads rulesets: libnftables (nftables.h of nftables ≥ 0.9), by ctypes, because the lockdown comes before imports.

Its own Python module makes the same calls but costs 9 ms to import; this costs 2.
"""

from __future__ import annotations

import ctypes
import time

from egress.firewall import FirewallError

_LIBRARY = "libnftables.so.1"
_TRIES = 6
# What the kernel says when another process changed its ruleset between our reading and our writing.
_RACES = ("Interrupted system call", "Resource temporarily unavailable", "Device or resource busy")

_library: ctypes.CDLL | None = None
_kept: list[int] = []  # contexts that are never freed: see `run`


def load() -> ctypes.CDLL:
    """The library. Raises FirewallError."""
    global _library
    if _library is None:
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise FirewallError(f"{_LIBRARY} is missing: install nftables' library (Debian: libnftables1)") from error
        library.nft_ctx_new.restype = ctypes.c_void_p
        library.nft_ctx_new.argtypes = [ctypes.c_uint32]
        library.nft_ctx_free.argtypes = [ctypes.c_void_p]
        library.nft_ctx_free.restype = None
        for name in ("nft_ctx_buffer_output", "nft_ctx_buffer_error"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
        for name in ("nft_ctx_get_output_buffer", "nft_ctx_get_error_buffer"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
            getattr(library, name).restype = ctypes.c_char_p
        library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        library.nft_ctx_set_dry_run.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        _library = library
    return _library


class Nft:
    """A context of the library, in the network namespace of the thread that first runs something.

    It is kept for as long as it is needed and never closed in between: closing its socket after a change waits 8 to
    20 ms for the kernel to clean up behind the change. Not for two threads at once.
    """

    __slots__ = ("_context",)

    def __init__(self) -> None:
        self._context: int | None = None

    def run(self, text: str, *, check: bool = False) -> str:
        """Apply `text` as one transaction; returns what nft printed.

        `check` asks the kernel without changing anything. A race with another writer of rulesets is tried again a few
        times. Raises FirewallError with the kernel's words.
        """
        library = load()
        context = self._context
        if context is None:
            context = self._context = library.nft_ctx_new(0)
            if not context:
                self._context = None
                raise FirewallError("libnftables gives no context")
            library.nft_ctx_buffer_output(context)
            library.nft_ctx_buffer_error(context)
        library.nft_ctx_set_dry_run(context, check)
        command = text.encode()
        pause = 0.002
        for attempt in range(_TRIES):
            failed = library.nft_run_cmd_from_buffer(context, command)
            output = (library.nft_ctx_get_output_buffer(context) or b"").decode(errors="replace")
            error = (library.nft_ctx_get_error_buffer(context) or b"").decode(errors="replace")
            if not failed:
                return output
            if attempt + 1 == _TRIES or not any(word in error for word in _RACES):
                raise FirewallError(_first_words(error) or "libnftables refused the ruleset and gave no reason")
            time.sleep(pause)
            pause *= 2
        raise AssertionError("unreachable")

    @property
    def opened(self) -> bool:
        """Whether it is kept now."""
        return self._context is not None

    def close(self) -> None:
        """Free it; the next `run` makes a new one."""
        if self._context is not None:
            load().nft_ctx_free(self._context)
            self._context = None


def run(text: str, *, check: bool = False) -> str:
    """`Nft.run` once, with a context of its own."""
    nft = Nft()
    try:
        return nft.run(text, check=check)
    finally:
        nft.close()


def _first_words(error: str) -> str:
    """The messages without the quoted lines below them, on one line."""
    lines = [line.strip() for line in error.splitlines() if "Error:" in line]
    return "; ".join(line.split("Error:", 1)[1].strip() for line in lines[:4]) or error.strip()[:400]
