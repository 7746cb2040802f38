"""A fake resolver that is faster than anything that is measured: one address for every name, TTL 300.

The first letter of a name says which address: `p…` one of a pool of 4,096 by the name's checksum, so that the same name
has the same address everywhere; `n…` one that was never answered before; `u…` is not answered at all.

Under load it does not sleep in the kernel until somebody wakes it, but looks every few microseconds. A resolver is on
another machine: whoever asks it hands a packet to a device, and does not pay for waking a process up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from zlib import crc32

POOL = 4096
TTL = 300
_HEAD = b"\x81\x80\0\1\0\1\0\0\0\0"  # an answer, recursion available; one question, one record
_RECORD = b"\xc0\x0c\0\1\0\1" + TTL.to_bytes(4, "big") + b"\0\4"
_EMPTY = b"\x81\x80\0\1\0\0\0\0\0\0"
_FIRST_NEW = 46 << 24
_LOAD = 3  # questions found at one look that mean load
_PAUSE = 60e-6  # seconds between looks
_PR_SET_TIMERSLACK = 29


def main() -> None:
    parent = os.getppid()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 1 << 22)
    sock.bind(("0.0.0.0", int(sys.argv[1])))
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0) if os.getppid() != parent else None)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)  # whoever started us may be killed
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    serve(sock)


def serve(sock: socket.socket) -> None:
    tails = [_RECORD + bytes((45, 77, index >> 8, index & 255)) for index in range(POOL)]
    new = _FIRST_NEW
    recvfrom, sendto = sock.recvfrom, sock.sendto
    found = 0
    while True:
        try:
            data, client = recvfrom(2048, socket.MSG_DONTWAIT if found else 0)
        except BlockingIOError:
            found = 1 if found > _LOAD else 0
            if found:
                time.sleep(_PAUSE)
            continue
        found += 1
        end = data.index(0, 12) + 5
        question = data[12:end]
        if question[-3] != 1:
            sendto(data[:2] + _EMPTY + question, client)
        elif data[13] == 110:  # n
            new += 1
            sendto(data[:2] + _HEAD + question + _RECORD + new.to_bytes(4, "big"), client)
        elif data[13] == 117:  # u
            continue
        else:
            sendto(data[:2] + _HEAD + question + tails[crc32(question) & 4095], client)


if __name__ == "__main__":
    main()
