"""Docker containers into entries. Pure.

A container is a sandbox when a label gives it an id: `opensandbox.io/id` (OpenSandbox's server sets it) or
`sallyport.sandbox`. One that joins another's network (`network_mode: container:<id>`, as beside an egress sidecar) is
reached at the other's address, and is frozen and gone with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ingress.providers import fields
from ingress.providers.fields import FieldError, shown
from ingress.providers.kubeobjects import mapping, text
from ingress.routes import Ambiguous, Entry, Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

IDS = ("opensandbox.io/id", "sallyport.sandbox")
SIDECAR_FOR = "opensandbox.io/egress-sidecar-for"
LABELS = (*IDS, SIDECAR_FOR)
"""A container with one of these is worth a look."""
TOKEN = "opensandbox.io/secure-access-token"  # noqa: S105 - the label's name
PORTS = "sallyport.ports"
UPSTREAM_HOST = "sallyport.upstream-host"


class Container(NamedTuple):
    """What counts of `GET /containers/{id}/json`."""

    id: str
    name: str
    labels: Mapping[str, str]
    reason: str
    """Why nothing in it runs now; "": it runs and isn't paused."""
    health: str
    """Why its own health check keeps it from being used; "": it has passed, or there is none."""
    running: bool
    started: str
    """When, RFC 3339."""
    joined: str
    """The id or name of the container whose network it shares; "": its own."""
    host_network: bool
    addresses: tuple[tuple[str, str], ...]
    """(network, address), in the daemon's order."""
    published: tuple[tuple[int, str, int], ...]
    """(TCP port, address on the host, port there)."""

    @property
    def sandbox_id(self) -> str:
        """The id that its labels give it, "" for none and for a sidecar."""
        if SIDECAR_FOR in self.labels:
            return ""
        return next((self.labels[label].strip() for label in IDS if self.labels.get(label, "").strip()), "")


class Wishes(NamedTuple):
    """How containers are to be reached."""

    network: str = ""
    """The network whose addresses are taken; "": the first with an address."""
    published: str = ""
    """The host where published ports answer; "": containers are reached at their own addresses."""


def read(document: object) -> Container | None:
    """A container of what the daemon says about it; None where that has no id."""
    inspected = mapping(document)
    state, network = mapping(inspected.get("State")), mapping(inspected.get("NetworkSettings"))
    identity = text(inspected.get("Id"))
    if not identity:
        return None
    mode = text(mapping(inspected.get("HostConfig")).get("NetworkMode"))
    labels = mapping(mapping(inspected.get("Config")).get("Labels"))
    return Container(
        id=identity,
        name=text(inspected.get("Name")).removeprefix("/") or identity[:12],
        labels={key: value for key, value in labels.items() if isinstance(value, str)},
        reason=_reason(state),
        health=_health(state),
        running=state.get("Running") is True,
        started=text(state.get("StartedAt")),
        joined=mode.removeprefix("container:") if mode.startswith("container:") else "",
        host_network=mode == "host",
        addresses=tuple(_addresses(mapping(network.get("Networks")))),
        published=tuple(_published(mapping(network.get("Ports")))),
    )


def _reason(state: Mapping[str, object]) -> str:
    if state.get("Paused") is True:
        return "its container is paused"
    if state.get("Restarting") is True:
        return "its container is restarting"
    if state.get("Running") is not True:
        code = state.get("ExitCode")
        ended = f", exit code {code}" if text(state.get("Status")) == "exited" and isinstance(code, int) else ""
        return f"its container doesn't run ({text(state.get('Status'))[:20] or 'stopped'}{ended})"
    return ""


def _health(state: Mapping[str, object]) -> str:
    health = text(mapping(state.get("Health")).get("Status"))
    if health == "starting":
        return "its container is starting: its health check has not passed yet"
    return "its container's health check fails" if health == "unhealthy" else ""


def _addresses(networks: Mapping[str, object]) -> Iterable[tuple[str, str]]:
    for name, settings in networks.items():
        for key in ("IPAddress", "GlobalIPv6Address"):
            address = text(mapping(settings).get(key))
            if address:
                try:
                    yield name, fields.host(address)
                except FieldError:
                    continue


def _published(ports: Mapping[str, object]) -> Iterable[tuple[int, str, int]]:
    for inside, bindings in ports.items():
        number, _, protocol = inside.partition("/")
        for binding in bindings if isinstance(bindings, list) else ():
            outside = mapping(binding)
            try:
                if protocol == "tcp":
                    yield fields.port(number), text(outside.get("HostIp")), fields.port(text(outside.get("HostPort")))
            except FieldError:
                continue


def entries(containers: Iterable[Container], wishes: Wishes) -> tuple[list[Entry], list[str]]:
    """The sandboxes among the containers, and a line for each that no route can name.

    Of several containers with one id those that run count (a sandbox that was replaced leaves the old one behind);
    several that run are Ambiguous.
    """
    known = Known(containers)
    by_id: dict[str, list[Container]] = {}
    complaints: list[str] = []
    for container in known.all:
        if not container.sandbox_id:
            continue
        try:
            by_id.setdefault(fields.sandbox_id(container.sandbox_id), []).append(container)
        except FieldError as error:
            complaints.append(f"container {container.name}: {error}")
    found: list[Entry] = []
    for sandbox_id, owners in by_id.items():
        candidates = [owner for owner in owners if owner.running] or [max(owners, key=_age)]
        sandboxes = tuple(_sandbox(sandbox_id, owner, known, wishes) for owner in candidates)
        if len(sandboxes) == 1:
            found.append(sandboxes[0])
        else:
            found.append(Ambiguous(sandbox_id, tuple(sorted(owner.name for owner in candidates)), sandboxes))
    return found, complaints


def _age(container: Container) -> tuple[str, str]:
    return container.started, container.id


def wanted(containers: Iterable[Container]) -> set[str]:
    """The containers whose networks sandboxes share, by id or name, and that are not among these."""
    known = Known(containers)
    joined = {container.joined for container in known.all if container.sandbox_id and container.joined}
    return {other for other in joined if known.find(other) is None}


class Known:
    """Containers by what another's `network_mode` may call them."""

    def __init__(self, containers: Iterable[Container]) -> None:
        self.all = list(containers)
        self._named = {container.name: container for container in self.all}
        self._named.update({container.id: container for container in self.all})

    def find(self, name: str) -> Container | None:
        """The container of an id, the beginning of one (12 characters at least), or a name."""
        found = self._named.get(name)
        if found is None and len(name) >= 12:
            found = next((other for other in self.all if other.id.startswith(name)), None)
        return found


def _sandbox(sandbox_id: str, container: Container, known: Known, wishes: Wishes) -> Sandbox:
    net, reason = container, container.reason or container.health
    if container.joined:
        other = known.find(container.joined)
        if other is None:
            reason = reason or "the container whose network it shares is gone"
        else:
            # A sidecar's health is about what goes out, and its first check comes seconds after the sandbox's creation.
            net = other
            reason = reason or (other.reason and f"its network's container {other.name}: {other.reason}")
    label = PORTS
    token, ports, upstream_host = "", None, ""
    try:
        ports = fields.ports(container.labels.get(PORTS, ""))
        label = TOKEN
        token = fields.token(container.labels.get(TOKEN, ""))
        label = UPSTREAM_HOST
        upstream_host = fields.upstream_host(container.labels.get(UPSTREAM_HOST, ""))
    except FieldError as error:
        reason = reason or f"its label {label} can't be used: {error}"
    host, addresses, mapped, why = _place(net, wishes)
    if wishes.published:
        reachable = frozenset(port for port, _, _ in mapped)
        ports = reachable if ports is None else ports & reachable
    reason = reason or why
    return Sandbox(
        id=sandbox_id,
        host=host,
        ready=not reason,
        reason=reason,
        token=token,
        ports=ports,
        incarnation=f"{container.id} {container.started}"
        + (f" {net.id} {net.started}" if net is not container else ""),
        upstream_host=upstream_host,
        port_map=mapped,
        addresses=addresses,
    )


def _place(net: Container, wishes: Wishes) -> tuple[str, tuple[str, ...], tuple[tuple[int, str, int], ...], str]:
    """Host, addresses, published ports, and why there is none of them."""
    if wishes.published:
        mapped: dict[int, tuple[int, str, int]] = {}
        for port, _, outside in net.published:
            mapped.setdefault(port, (port, wishes.published, outside))  # v4 and v6 have one entry each
        return wishes.published, (), tuple(mapped.values()), "" if mapped else "it publishes no port"
    if net.host_network:
        return "", (), (), "it is on the host's own network and has no address of its own"
    addresses = [address for network, address in net.addresses if wishes.network in ("", network)]
    if addresses:
        return addresses[0], tuple(addresses), (), ""
    networks = ", ".join(dict.fromkeys(network for network, _ in net.addresses)) or "none"
    if wishes.network:
        return "", (), (), f"it has no address on the network {shown(wishes.network)} (it is on: {networks})"
    return "", (), (), "it has no address on any network"
