"""The Docker network that watched containers live on: a bridge of its own, without traffic between containers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from egress.docker.api import DockerError
from egress.hostconfig import nameservers, resolv_conf

if TYPE_CHECKING:
    from egress.docker.api import Docker

_NAME = "com.docker.network.bridge.name"
_ICC = "com.docker.network.bridge.enable_icc"
_SYSTEMD = "/run/systemd/resolve/resolv.conf"


class NetworkError(Exception):
    """The network is there and is not ours; one line with what to do."""


class Wanted(NamedTuple):
    """What the network has to be."""

    name: str
    bridge: str  # the name of its device on the host
    subnets: tuple[str, ...] = ()  # none: Docker chooses, IPv4 alone


def ensure(docker: Docker, wanted: Wanted) -> bool:
    """Create it where it is not there (True). Raises NetworkError, DockerError."""
    if _stands(docker, wanted):
        return False
    document: dict[str, Any] = {
        "Name": wanted.name,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "EnableIPv6": any(":" in subnet for subnet in wanted.subnets),
        "Options": {_NAME: wanted.bridge, _ICC: "false"},
        "Labels": {"sallyport.network": "watched"},
    }
    if wanted.subnets:
        document["IPAM"] = {"Driver": "default", "Config": [{"Subnet": subnet} for subnet in wanted.subnets]}
    try:
        docker.call("POST", "/networks/create", body=document)
    except DockerError as error:
        if error.status == 409 and _stands(docker, wanted):  # somebody else has created it in between
            return False
        raise
    return True


def _stands(docker: Docker, wanted: Wanted) -> bool:
    """Whether it is there. Raises NetworkError for one that will not do, DockerError."""
    try:
        found = docker.call("GET", f"/networks/{quote(wanted.name, safe='')}")
    except DockerError as error:
        if error.status == 404:
            return False
        raise
    problem = fault(found, wanted)
    if problem:
        raise NetworkError(
            f"network {wanted.name}: {problem}; remove it (docker network rm {wanted.name}) or give --network"
        )
    return True


def fault(found: object, wanted: Wanted) -> str:
    """Why a network that is there will not do, "" where it will. Pure."""
    network = found if isinstance(found, dict) else {}
    options = network.get("Options") or {}
    if network.get("Driver") != "bridge":
        return f"its driver is {network.get('Driver')}, not bridge"
    if options.get(_NAME) != wanted.bridge:
        return f"its bridge is {options.get(_NAME) or 'not named'}, not {wanted.bridge}"
    if options.get(_ICC) != "false":
        return f"its containers can reach each other ({_ICC} is not false)"
    return ""


def asks_from_host(version: str, text: str, systemd: str) -> str:
    """Whose resolvers Docker would ask from the host's own network, for a container that names none, before its guard
    and past it: "" where it asks from inside the container. Pure.

    `version` is the daemon's; `text` the host's resolv.conf, `systemd` the one that Docker takes where the first names
    systemd's stub alone. Up to 24 only resolvers on the host's loopback are asked from there; later versions ask IPv6
    ones, and by now all (libnetwork/internal/resolvconf of moby, `TransformForIntNS`).
    """
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) >= 25:
        return "the host's resolvers"
    servers = nameservers(text)
    if servers == ["127.0.0.53"]:
        servers = nameservers(systemd)
    return next((server for server in servers if server.startswith("127.") or server == "::1"), "")


def needs_dns(docker: Docker, daemon_json: str = "/etc/docker/daemon.json") -> str:
    """`asks_from_host` of this daemon on this host, but where its own settings name resolvers. Raises DockerError."""
    try:
        with open(daemon_json, "rb") as file:
            settings = json.loads(file.read(1 << 20))
        if isinstance(settings, dict) and settings.get("dns"):
            return ""
    except (OSError, ValueError):
        pass
    found = docker.call("GET", "/version")
    version = str(found.get("Version", "")) if isinstance(found, dict) else ""
    return asks_from_host(version, resolv_conf(), resolv_conf(_SYSTEMD))
