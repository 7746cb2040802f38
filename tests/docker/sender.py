"""What a container runs that sends from its first instruction, in every way that Docker's capabilities allow.

    python3 sender.py TAG ADDRESS ADDRESS6 IMITATED     until it is killed; a line for each round: its number, and the
                                                        ways that the kernel took
Payloads are TAG-way: whoever stands outside knows what came how. Standard library only; runs without `site`.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TCP_PORT, UDP_PORT = 40001, 40002
GATEWAY = "172.30.0.1"
MAC_AT, ADDRESS_AT = 0x8927, 0x8915  # SIOCGIFHWADDR, SIOCGIFADDR


def checksum(data: bytes) -> int:
    data += b"\0" * (len(data) & 1)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def datagram(source: str, target: str, payload: bytes) -> bytes:
    """IPv4 and UDP, without UDP's checksum."""
    body = struct.pack(">HHHH", 4000, UDP_PORT, 8 + len(payload), 0) + payload
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 7, 0, 64, 17, 0)
    head += socket.inet_aton(source) + socket.inet_aton(target)
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + body


def asked(question: str) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in question.split("."))
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)


def device(request: int, at: slice) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock, request, struct.pack("256s", b"eth0"))[at]


def gateway() -> bytes:
    """The gateway's Ethernet address, which ARP tells once something was sent to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"", (GATEWAY, 9))
    with open("/proc/net/arp") as file:
        for line in file:
            if line.startswith(GATEWAY + " ") and "00:00:00:00:00:00" not in line:
                return bytes.fromhex(line.split()[3].replace(":", ""))
    return b"\xff" * 6


def ways(tag: str, target: str, target6: str, imitated: str) -> dict[str, Callable[[], None]]:
    def udp(family: int, address: str, way: str) -> None:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.sendto(f"{tag}-{way}".encode(), (address, UDP_PORT))

    def tcp() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            sock.connect_ex((target, TCP_PORT))
            time.sleep(0.001)

    def icmp() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
            body = struct.pack(">BBHHH", 8, 0, 0, 7, 1) + f"{tag}-icmp".encode()
            sock.sendto(body[:2] + struct.pack(">H", checksum(body)) + body[4:], (target, 0))

    def frame(source: str, way: str) -> None:
        packet = datagram(source, target, f"{tag}-{way}".encode())
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0008) as sock:
            sock.bind(("eth0", 0x0800))
            sock.send(gateway() + device(MAC_AT, slice(18, 24)) + b"\x08\x00" + packet)

    def dns() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(asked(f"{tag}.example.com"), ("127.0.0.11", 53))

    def own() -> str:
        return socket.inet_ntoa(device(ADDRESS_AT, slice(20, 24)))

    return {
        "udp4": lambda: udp(socket.AF_INET, target, "udp4"),
        "udp6": lambda: udp(socket.AF_INET6, target6, "udp6"),
        "tcp": tcp,
        "icmp": icmp,
        "frame": lambda: frame(own(), "frame"),
        "imitated": lambda: frame(imitated, "imitated"),
        "dns": dns,
    }


def main() -> None:
    found = ways(*sys.argv[1:5])
    number = 0
    while True:
        number += 1
        taken = [str(number)]
        for name, way in found.items():
            try:
                way()
                taken.append(name)
            except OSError:
                pass
        print(" ".join(taken), flush=True)
        time.sleep(0.005)


if __name__ == "__main__":
    main()
