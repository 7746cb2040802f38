"""What stands around us: addresses, resolvers, ports, folders, limits. Read, never changed."""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from egress.config import Config, Endpoint

_UPSTREAM = "OPENSANDBOX_EGRESS_DNS_UPSTREAM"
_NS = 2  # the type of the question that every resolver can answer, for the root
_ANSWER_WITHIN = 1.5  # seconds


def ipv6_loopback() -> bool:
    """Whether ::1 is here."""
    from egress.netns import Namespace

    try:
        return any(address.packed == b"\0" * 15 + b"\1" for address in Namespace().addresses())
    except OSError:
        return False


def xdp_sockets() -> str:
    """`ours` to hold, `lacking` the privilege to, or "" where the kernel has none."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    fd = library.socket(44, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)  # AF_XDP
    if fd >= 0:
        os.close(fd)
        return "ours"
    return "" if ctypes.get_errno() == errno.EAFNOSUPPORT else "lacking"


def standing() -> str:
    """What stands of ours in this namespace, or ""."""
    from egress.firewall import FirewallError
    from egress.firewall.guardhouse import Firewall

    firewall = Firewall()
    try:
        found = firewall.standing()
    except (FirewallError, OSError):
        return ""
    finally:
        firewall.close()
    if found is None:
        return ""
    return f"stands in this namespace ({found.mode}); a sidecar that starts here takes it over"


def interceptors() -> tuple[str, str]:
    """Who else redirects outgoing packets, as words, and why that cannot be said; either may be ""."""
    from egress.firewall import FirewallError
    from egress.firewall.redirects import redirects

    try:
        found = [redirect for redirect in redirects() if not redirect.docker]
    except (FirewallError, OSError) as error:
        return "", str(error)
    owners = sorted({redirect.owner for redirect in found if redirect.owner})
    places = ", ".join(f"{redirect.how} in table {redirect.table}, chain {redirect.chain}" for redirect in found[:3])
    return (f"{', '.join(owners)}: {places}" if owners else places), ""


def legacy_nat() -> bool:
    """Whether the old iptables has a nat table here."""
    from egress.firewall import redirects

    return redirects.legacy_nat()


# -- resolvers -------------------------------------------------------------------------------------------------------
def upstreams(environ: Mapping[str, str]) -> tuple[tuple[Endpoint, ...], str]:
    """The resolvers that a sidecar would ask here, or why there is none."""
    from egress.config import ConfigError, from_env

    text = ""
    try:
        with open("/etc/resolv.conf", encoding="utf-8", errors="replace") as file:
            text = file.read(65536)
    except OSError:
        pass
    try:
        return from_env({name: environ[name] for name in (_UPSTREAM,) if name in environ}, text).upstreams, ""
    except ConfigError as error:
        return (), str(error)


def spelled(endpoint: Endpoint) -> str:
    """`192.0.2.53`, with its port where that isn't 53."""
    from policies.address import format_address

    text = format_address(endpoint.address)
    if endpoint.port == 53:
        return text
    return f"[{text}]:{endpoint.port}" if len(endpoint.address) == 16 else f"{text}:{endpoint.port}"


def silent(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Those that don't answer a question for the root's name servers, all asked at once."""
    from egress.dns import wire

    waiting: dict[socket.socket, Endpoint] = {}
    mute = []
    for endpoint in endpoints:
        family = socket.AF_INET if len(endpoint.address) == 4 else socket.AF_INET6
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            sock.connect((socket.inet_ntop(family, endpoint.address), endpoint.port))
            sock.send(wire.ask(int.from_bytes(os.urandom(2), "big"), "", _NS))
            waiting[sock] = endpoint
        except OSError:
            sock.close()
            mute.append(endpoint)
    end = time.monotonic() + _ANSWER_WITHIN
    while waiting and time.monotonic() < end:
        ready, _, _ = select.select(list(waiting), [], [], max(0.0, end - time.monotonic()))
        for sock in ready:
            endpoint = waiting.pop(sock)
            try:
                sock.recv(4096)
            except OSError:
                mute.append(endpoint)
            sock.close()
    for sock, endpoint in waiting.items():
        sock.close()
        mute.append(endpoint)
    return mute


# -- the sidecar's settings ------------------------------------------------------------------------------------------
def _config(environ: Mapping[str, str]) -> Config:
    from egress.config import from_env

    return from_env({**environ, _UPSTREAM: "192.0.2.53"}, "")  # resolvers are a finding of their own


def settings(environ: Mapping[str, str]) -> str:
    """Why `egress serve` would refuse this environment, but for the resolvers; or ""."""
    from egress.config import ConfigError
    from egress.control.sources import read_variables

    try:
        read_variables(_config(environ))
    except ConfigError as error:
        return str(error)
    return ""


def api_port(environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Whether the API's port can be bound: ("free" | "ours" | "taken", words, advice)."""
    address, port = _config(environ).http
    family = socket.AF_INET6 if len(address) == 16 else socket.AF_INET
    host = socket.inet_ntop(family, address) if address else "0.0.0.0"
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        # With reuse, so that a dead sidecar's old connections don't count; it still fails where somebody listens.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and _is_sidecar(family, host if address else "127.0.0.1", port):
                return "ours", f"{port}: a sidecar is answering there already", ""
            words = f"{port}: {error.strerror}"
            return "taken", words, "stop what listens there, or choose another with OPENSANDBOX_EGRESS_HTTP_ADDR"
    return "free", f"{port} is free", ""


def _is_sidecar(family: int, host: str, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(1.0)
            sock.connect((host, port))
            sock.sendall(b"GET /policy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            data = b""
            while len(data) < 4096 and (part := sock.recv(4096)):
                data += part
    except OSError:
        return False
    return b"enforcementMode" in data or b"OPENSANDBOX-EGRESS-AUTH" in data


def folders(environ: Mapping[str, str]) -> list[tuple[str, str, str, bool]]:
    """(name, title, path, needed) of the folders that a sidecar writes to."""
    config = _config(environ)
    found = [("socket_folder", "control socket", os.path.dirname(config.socket_path), config.socket_explicit)]
    if config.policy_file:
        folder = os.path.dirname(os.path.abspath(config.policy_file))
        found.append(("policy_folder", "policy file", folder, True))
    else:
        found.append(("state_folder", "state folder", "/var/egress", False))
    return found


def unwritable(path: str) -> str:
    """Why a file cannot be made in this folder (made first, where it isn't there), or ""."""
    if os.path.lexists(path) and not os.path.isdir(path):
        return "not a folder"
    there = path
    while not os.path.lexists(there) and there != os.path.dirname(there):
        there = os.path.dirname(there)
    if os.access(there, os.W_OK | os.X_OK):
        return ""
    try:
        read_only = bool(os.statvfs(there).f_flag & os.ST_RDONLY)
    except OSError:
        read_only = False
    words = "read-only" if read_only else "not for this user to write"
    return words if there == path else f"not there, and {there} is {words}"


# -- sandboxes of our own --------------------------------------------------------------------------------------------
def user_namespaces() -> str:
    """Why an ordinary user cannot make a user namespace with a network in it, or ""."""
    from egress.commands.scratch import ScratchError, as_nobody

    def attempt() -> str:
        from egress.isolation import syscalls

        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNET)
        with open("/proc/self/setgroups", "w", encoding="ascii") as file:  # what AppArmor's restriction refuses
            file.write("deny")
        return ""

    try:
        return str(as_nobody(attempt))
    except ScratchError as error:
        return f"refused to ordinary users: {error}"


def connectivity() -> tuple[str, str]:
    """The program that connects sandboxes of `egress run`, or why there is none."""
    from egress.isolation import connectivity as network

    helper, problem = network.find()
    return (helper.name, "") if helper is not None else ("", problem)


# -- limits ----------------------------------------------------------------------------------------------------------
def memory() -> int | None:
    """Bytes of memory to be had, by the machine or the control group, whichever has less."""
    found = []
    try:
        with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
            found += [int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    most, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if most is not None and used is not None:
        found.append(max(0, most - used))
    return min(found, default=None)


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return int(file.read(32))
    except (OSError, ValueError):
        return None


def descriptors() -> int:
    """How many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft >= 0 else 1 << 30
