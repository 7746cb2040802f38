"""What a program in the sandbox says on its connections, and what it hears: for the name guard's tests (E15)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from lab import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab import Identity, Lab

_PROGRAM = r"""
import json, socket, ssl, sys, time

def connect(address, port):
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(8)
    sock.connect((address, port))
    return sock

def context():
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made

def tls(address, name):
    "Which name the server says it was asked for."
    with connect(address, 443) as sock, context().wrap_socket(sock, server_hostname=name) as secure:
        secure.sendall(b"hello")
        return secure.recv(4096).decode().split(" ")[0]

def http(address, host, more=""):
    "Which Host the server says it was asked for."
    with connect(address, 80) as sock:
        sock.sendall(("GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (host, more)).encode())
        return sock.recv(4096).decode().split("\nhost ")[1].split("\n")[0]

def say(address, port, *parts):
    "Parts in hexadecimal, each a segment; what comes back first."
    with connect(address, port) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            sock.sendall(bytes.fromhex(part))
            time.sleep(0.002 if len(parts) > 1 else 0)
        return sock.recv(4096)[:20].hex() or "closed"

def in_pieces(address, name, record, segment):
    "A handshake whose first flight comes in records and segments of these sizes."
    come, gone = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = context().wrap_bio(come, gone, server_hostname=name)
    with connect(address, 443) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first = True
        while True:
            try:
                secure.do_handshake()
                break
            except ssl.SSLWantReadError:
                flight = gone.read()
                if first:
                    message = flight[5:]
                    cut = [message[at:at + record] for at in range(0, len(message), record)]
                    flight = b"".join(flight[:3] + len(part).to_bytes(2, "big") + part for part in cut)
                    for number, at in enumerate(range(0, len(flight), segment)):
                        sock.sendall(flight[at:at + segment])
                        if number < 8:  # the guard has its patience, and on a busy machine each sleep is a long one
                            time.sleep(0.0005)
                    first = False
                elif flight:
                    sock.sendall(flight)
                data = sock.recv(65536)
                if not data: return "closed"
                come.write(data)
        secure.write(b"hello")
        sock.sendall(gone.read())
        while True:
            try:
                return secure.read(4096).decode().split(" ")[0]
            except ssl.SSLWantReadError:
                come.write(sock.recv(65536))

def again(address, name, other):
    "A handshake whose second ClientHello, after a HelloRetryRequest, is for another name of the same length."
    come, gone = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = context().wrap_bio(come, gone, server_hostname=name)
    with connect(address, 443) as sock:
        for change in (False, True):
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                flight = gone.read()
            sock.sendall(flight.replace(name.encode(), other.encode()) if change else flight)
            data = sock.recv(65536)
            if not data: return "closed"
            come.write(data)
        return data[:1].hex()

def udp(address, port):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(8)
        sock.connect((address, port))
        sock.send(b"quic")
        return "answered" if sock.recv(100) else ""

done = []
for kind, *arguments in json.loads(sys.argv[1]):
    begun = time.monotonic()
    try:
        heard = globals()[kind](*arguments)
    except ConnectionResetError:
        heard = "reset"
    except ConnectionRefusedError:
        heard = "refused"
    except ssl.SSLError as error:
        heard = "closed" if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)) else error.reason
    except TimeoutError:
        heard = "timeout"
    except OSError as error:
        heard = error.strerror
    done.append([heard, time.monotonic() - begun])
print(json.dumps(done))
"""


class Heard(NamedTuple):
    word: str  # what the server says; "reset", "refused", "closed", "timeout"
    seconds: float


def speak(lab: Lab, tries: Sequence[Sequence[object]], identity: Identity = ROOT) -> list[Heard]:
    """What a program inside hears, try by try: `("tls", address, name)`, `("http", address, host)`,
    `("say", address, port, octets in hexadecimal, …)`, `("in_pieces", address, name, record, segment)`,
    `("again", address, name, other)`, `("udp", address, port)`."""
    done = lab.python(_PROGRAM, json.dumps(tries), identity=identity, timeout=90)
    assert done.returncode == 0, done.stderr
    return [Heard(word, seconds) for word, seconds in json.loads(done.stdout)]


def words(lab: Lab, tries: Sequence[Sequence[object]], identity: Identity = ROOT) -> list[str]:
    """The words alone."""
    return [heard.word for heard in speak(lab, tries, identity)]
