"""The Docker network that watched containers live on: a bridge of its own, without traffic between containers."""

from __future__ import annotations

import os
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
    try:
        found = docker.call("GET", f"/networks/{quote(wanted.name, safe='')}")
    except DockerError as error:
        if error.status != 404:
            raise
    else:
        problem = fault(found, wanted)
        if problem:
            raise NetworkError(
                f"network {wanted.name}: {problem}; remove it (docker network rm {wanted.name}) or give --network"
            )
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
    docker.call("POST", "/networks/create", body=document)
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


def loopback_resolver(text: str, systemd: str) -> str:
    """The resolver on the host's loopback that Docker would ask for a container, from the host's own network, where no
    rule of the container's holds; "" where it asks from inside the container. Pure.

    `text` is the host's resolv.conf, `systemd` the one that Docker takes where the first names systemd's stub alone.
    """
    servers = nameservers(text)
    if servers == ["127.0.0.53"]:
        servers = nameservers(systemd)
    return next((server for server in servers if server.startswith("127.") or server == "::1"), "")


def asked_from_host(daemon_json: str = "/etc/docker/daemon.json") -> str:
    """`loopback_resolver` of this host, but where the daemon's own settings name resolvers."""
    import json

    try:
        with open(daemon_json, "rb") as file:
            settings = json.loads(file.read(1 << 20))
        if isinstance(settings, dict) and settings.get("dns"):
            return ""
    except (OSError, ValueError):
        pass
    return loopback_resolver(resolv_conf(), resolv_conf(_SYSTEMD) if os.path.exists(_SYSTEMD) else "")
