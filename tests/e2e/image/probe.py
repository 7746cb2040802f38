"""What a sandboxed program gets to see: `name NAME` its addresses, `http HOST` the page on port 80."""

import errno
import http.client
import socket
import sys

what, target = sys.argv[1:]
try:
    if what == "name":
        print(*sorted({found[4][0] for found in socket.getaddrinfo(target, 80, socket.AF_INET)}))
    else:
        connection = http.client.HTTPConnection(target, 80, timeout=20)
        connection.request("GET", "/")
        print(connection.getresponse().read().decode().strip())
except socket.gaierror as error:
    print("unknown" if error.errno == socket.EAI_NONAME else f"unresolved {error}")
except OSError as error:
    print(errno.errorcode.get(error.errno or 0, type(error).__name__))
