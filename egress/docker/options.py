"""The options of `docker run`, divided between a container and the sidecar whose network it joins. Pure.

What has to do with the network goes to the sidecar: Docker takes it of a container with a network of its own only. What
would defeat the guard is refused with the reason, and so is every option that this list doesn't know.
"""

from __future__ import annotations

from typing import NamedTuple

from egress.docker.containers import CAPABILITIES, RUNTIMES, opens_the_host

_SHORT = {
    "a": "attach", "c": "cpu-shares", "d": "detach", "e": "env", "h": "hostname", "i": "interactive", "l": "label",
    "m": "memory", "p": "publish", "P": "publish-all", "q": "quiet", "t": "tty", "u": "user", "v": "volume",
    "w": "workdir",
}  # fmt: skip
_ALIASES = {"net": "network", "net-alias": "network-alias", "dns-opt": "dns-option"}
_FLAGS = frozenset(
    (
        "detach", "disable-content-trust", "init", "interactive", "no-healthcheck", "oom-kill-disable", "privileged",
        "publish-all", "quiet", "read-only", "rm", "sig-proxy", "tty", "use-api-socket",
    )
)  # fmt: skip
_SIDECARS = frozenset(
    (
        "add-host", "dns", "dns-option", "dns-search", "domainname", "expose", "hostname", "ip", "ip6", "link",
        "link-local-ip", "mac-address", "network", "network-alias", "publish",
    )
)  # fmt: skip
_CONTAINERS = frozenset(
    (
        "annotation", "attach", "blkio-weight", "blkio-weight-device", "cap-add", "cap-drop", "cgroup-parent",
        "cgroupns", "cidfile", "cpu-period", "cpu-quota", "cpu-rt-period", "cpu-rt-runtime", "cpu-shares", "cpus",
        "cpuset-cpus", "cpuset-mems", "detach-keys", "device", "device-cgroup-rule", "device-read-bps",
        "device-read-iops", "device-write-bps", "device-write-iops", "entrypoint", "env", "env-file", "gpus",
        "group-add", "health-cmd", "health-interval", "health-retries", "health-start-interval", "health-start-period",
        "health-timeout", "ipc", "label", "label-file", "log-driver", "log-opt", "memory", "memory-reservation",
        "memory-swap", "memory-swappiness", "mount", "name", "oom-score-adj", "pids-limit", "platform", "pull",
        "runtime", "security-opt", "shm-size", "stop-signal", "stop-timeout", "storage-opt", "sysctl", "tmpfs",
        "ulimit", "user", "userns", "uts", "volume", "volume-driver", "volumes-from", "workdir",
    )
)  # fmt: skip
_REFUSED = {
    "detach": "the guard and its container are removed together, by this command: put it into the background (&), or "
    "use egress docker watch",
    "privileged": "a privileged container can take the rules away",
    "publish-all": "the ports that an image exposes are the container's, and its network is the sidecar's: name them "
    "with -p",
    "use-api-socket": "with Docker's socket it can start containers that nobody guards",
    "pid": "with other processes' PID namespace it can enter their network",
    "restart": "the guard and its container are removed together: use egress docker watch for one that comes back",
}
OURS = frozenset(("policy", "allow", "deny", "sidecar-image", "upstream"))
"""Options of this command's own, which all take a value."""


class OptionError(ValueError):
    """An option that can't be taken; one line that says why."""


class Divided(NamedTuple):
    """A command line, divided."""

    ours: tuple[tuple[str, str], ...]  # name, value
    sidecar: tuple[str, ...]
    container: tuple[str, ...]
    image: str
    command: tuple[str, ...]
    network: str  # that the sidecar is on, "" for Docker's default
    resolvers: tuple[str, ...]  # of --dns
    name: str  # that the container is given, "" for none


def divide(argv: list[str]) -> Divided:
    """Divide `[OPTION ...] [--] IMAGE [COMMAND ...]`. Raises OptionError."""
    ours: list[tuple[str, str]] = []
    sidecar: list[str] = []
    container: list[str] = []
    network, name = "", ""
    resolvers: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--" or not word.startswith("-") or word == "-":
            if word != "--":
                words.insert(0, word)
            break
        for option, value in _options(word, words):
            if option in OURS:
                ours.append((option, value or ""))
                continue
            refuse(option, value)
            text = f"--{option}" if value is None else f"--{option}={value}"
            if option == "rm":
                continue  # it is removed in any case
            if option in _SIDECARS:
                sidecar.append(text)
                if option == "network":
                    network = (value or "").partition(",")[0].removeprefix("name=")
                elif option == "dns":
                    resolvers.append(value or "")
            else:
                container.append(text)
                name = (value or "") if option == "name" else name
    if not words:
        raise OptionError("no image given; write it after --, as in: egress docker run --policy web-only -- IMAGE")
    return Divided(
        tuple(ours), tuple(sidecar), tuple(container), words[0], tuple(words[1:]), network, tuple(resolvers), name
    )


def _options(word: str, rest: list[str]) -> list[tuple[str, str | None]]:
    """The options in one word, whose value may be the next; a flag's value is None, or what is written behind `=`."""
    if word.startswith("--"):
        option, equals, value = word[2:].partition("=")
        option = _ALIASES.get(option, option)
        if option in _FLAGS:
            return [] if value.lower() in ("false", "0", "f") and option != "sig-proxy" else [(option, value or None)]
        if option not in _SIDECARS | _CONTAINERS | OURS and option not in _REFUSED:
            raise OptionError(f"--{option}: not an option of docker run that is known here")
        return [(option, value if equals else _next(f"--{option}", rest))]
    found: list[tuple[str, str | None]] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        option = _SHORT.get(letter, "")
        if not option:
            raise OptionError(f"-{letter}: not an option of docker run that is known here")
        if option in _FLAGS:
            found.append((option, None))
            continue
        found.append((option, letters.removeprefix("=") if letters else _next(f"-{letter}", rest)))
        break
    return found


def _next(option: str, rest: list[str]) -> str:
    if not rest:
        raise OptionError(f"{option} wants a value")
    return rest.pop(0)


def refuse(option: str, value: str | None) -> None:
    """Raises OptionError for what would defeat the guard."""
    said = f"--{option}" if value is None else f"--{option} {value}"
    text = value or ""
    if option in _REFUSED:
        raise OptionError(f"{said}: {_REFUSED[option]}")
    reason = ""
    if option == "cap-add":
        name = text.upper().removeprefix("CAP_")
        reason = f"with {name} {CAPABILITIES[name]}" if name in CAPABILITIES else ""
        if name == "NET_RAW":
            reason = "raw sockets are taken from what runs behind a guard"
    elif option == "network":
        if text == "host" or text.startswith("container:"):
            reason = "the container joins the guard's network, so that it can be guarded"
        elif text == "none":
            reason = "there is nothing to guard: run it with docker run"
    elif option == "runtime" and text not in RUNTIMES:
        reason = "it may bring a network stack of its own, which the rules never see"
    elif option == "sysctl" and text.startswith("net."):
        reason = "the network is the guard's"
    elif option == "volume":
        reason = opens_the_host(text.partition(":")[0])
    elif option == "mount":
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        reason = opens_the_host(parts.get("source") or parts.get("src") or "")
    if reason:
        raise OptionError(f"{said}: {reason}")
