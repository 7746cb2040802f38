"""What a program says on ports 80 and 443: whom the connection is for."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from soak.flows import PATIENCE, Flow

if TYPE_CHECKING:
    from lab import Lab
    from soak.model import Probe

_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_CONTEXT.check_hostname, _CONTEXT.verify_mode = False, ssl.CERT_NONE


def hear(lab: Lab, probe: Probe) -> str:
    """ "connected" where the server answers to the name, else as `lab.client` has it, or "reset"."""
    family = socket.AF_INET6 if ":" in probe.address else socket.AF_INET
    name = probe.name or ""
    with lab.sandbox.socket(family, socket.SOCK_STREAM) as plain:
        plain.settimeout(PATIENCE)
        try:
            plain.connect((probe.address, probe.port))
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:
            return "timeout"
        except OSError as error:
            return str(error.strerror)
        try:
            if probe.port == 443:
                with _CONTEXT.wrap_socket(plain, server_hostname=name or None) as secure:
                    secure.sendall(b"hello")
                    said, wanted = secure.recv(4096).decode(), f"{name or 'nobody'} said hello"
            else:
                plain.sendall(request(name, "/"))
                said, wanted = plain.recv(4096).decode(), f"\nhost {name}\n"
        except TimeoutError:
            return "timeout"
        except (ConnectionError, ssl.SSLEOFError):
            return "reset"
        except OSError as error:
            return f"connected, and then {error}"
    if not said:
        return "reset"
    return "connected" if wanted in said else f"connected, and answered {said!r}"


def request(name: str, path: str) -> bytes:
    """One for a Host, "" for none."""
    return f"GET {path} HTTP/1.1\r\n{f'Host: {name}' if name else 'Accept: */*'}\r\n\r\n".encode()


class Talk(Flow):
    """A connection for a name, kept open; `chain` is that of the name. Raises OSError where it cannot be opened."""

    def __init__(self, lab: Lab, probe: Probe, chain: tuple[str, ...]) -> None:
        super().__init__(lab, probe)
        self.chain = chain

    def greet(self, sock: socket.socket) -> socket.socket:
        if self.probe.port != 443:
            return sock
        return _CONTEXT.wrap_socket(sock, server_hostname=self.probe.name, suppress_ragged_eofs=False)

    def say(self, word: bytes) -> None:
        if self.probe.port == 80:
            word = request(self.probe.name or "", f"/{word.decode()}")
        super().say(word)
