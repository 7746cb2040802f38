"""TLS sites that say back which name they were asked for. Run by `lab.tls.TlsSites`.

argv: a PEM file with key and certificate; for each listener `port=groups`, groups "" for the usual ones
each connection: handshake, one line in, one line out (`NAME said LINE`), then everything comes back as it is sent
stdin: its end is ours
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading

from lab import pktinfo


def context(certificate: str, groups: str) -> ssl.SSLContext:
    """A server's; `groups` are those it takes, so that a client with another key share is asked again."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificate)
    if groups:
        made.set_ecdh_curve(groups)

    def named(sock: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        names[id(sock)] = name or "nobody"

    made.sni_callback = named
    return made


names: dict[int, str] = {}


def talk(client: socket.socket, secure: ssl.SSLContext) -> None:
    with contextlib.suppress(OSError), client:
        client.settimeout(60)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits for a delayed ACK
        sock = secure.wrap_socket(client, server_side=True)
        with sock:
            name = names.pop(id(sock), "nobody")
            line = sock.recv(4096)
            sock.sendall(f"{name} said ".encode() + line)
            while data := sock.recv(65536):
                sock.sendall(data)


def listen(listener: socket.socket, secure: ssl.SSLContext) -> None:
    listener.setblocking(True)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=talk, args=(client, secure), daemon=True).start()


def main(certificate: str, *places: str) -> None:
    for place in places:
        port, _, groups = place.partition("=")
        secure = context(certificate, groups)
        for family in (socket.AF_INET, socket.AF_INET6):
            listener = pktinfo.wildcard(family, int(port), socket.SOCK_STREAM)
            threading.Thread(target=listen, args=(listener, secure), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
