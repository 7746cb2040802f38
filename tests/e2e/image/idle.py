"""A sidecar that does nothing but answer on the control API's port: what attaching any sidecar costs."""

import signal
import socket
import sys

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
listening = socket.create_server(("", 18080))
while True:
    connection, _ = listening.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
