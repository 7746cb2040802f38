"""The doctor's questions, one function each: what was found, whether it will do, and what to do if not."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, NamedTuple

from egress.commands import surroundings
from egress.commands.scratch import ScratchError, apart
from egress.commands.trial import Trial, library, net_admin, trial

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVE, RUN = "serve", "run"
OLDEST = (5, 16)  # the kernel that brought the netdev egress hook


class Finding(NamedTuple):
    """One line. `state` is ok, note, limited or missing; `advice` is "" where nothing is to be done."""

    name: str  # for programs; it does not change
    state: str
    title: str
    found: str
    advice: str = ""


def default_purpose() -> str:
    """What somebody with these privileges most likely wants to know about."""
    return SERVE if net_admin() or os.geteuid() == 0 else RUN


def survey(purpose: str, *, ask: bool = True) -> list[Finding]:
    """Every finding, in the order in which they depend on each other. `ask`: resolvers may be asked something."""
    admin = net_admin()
    found = [_kernel(), _library(), _capability(purpose, admin=admin)]
    found += _packets(trial())
    if purpose == SERVE:
        found.append(_xdp())
    found.append(_privileges())
    found += _namespace(purpose, admin=admin)
    found += _resolvers(purpose, ask=ask)
    if purpose == SERVE:
        found += _service()
    found += _sandboxes(purpose)
    found += _resources()
    return found


def _lack(purpose: str, needed_for: str) -> str:
    """The state of what does not hold: missing where it is needed, for another purpose a note."""
    return "missing" if purpose == needed_for else "note"


def _library() -> Finding:
    trouble = library()
    if trouble:
        return Finding(
            "libnftables", "missing", "libnftables", trouble, "install it (Debian: apt-get install libnftables1)"
        )
    return Finding("libnftables", "ok", "libnftables", "loads")


def _capability(purpose: str, *, admin: bool) -> Finding:
    if admin:
        return Finding("net_admin", "ok", "CAP_NET_ADMIN", "held")
    advice = "docker run --cap-add NET_ADMIN; Kubernetes: securityContext.capabilities.add; or be root"
    if purpose != SERVE:
        advice = "egress run does without: it has it in a user namespace of its own"
    return Finding("net_admin", _lack(purpose, SERVE), "CAP_NET_ADMIN", "not held", advice)


def _kernel() -> Finding:
    release = platform.release()
    numbers = [int(part) for part in release.split("-")[0].split(".")[:2] if part.isdecimal()]
    old = platform.system() == "Linux" and tuple(numbers) < OLDEST
    return Finding(
        "kernel",
        "limited" if old else "ok",
        "kernel",
        f"{platform.system()} {release} {platform.machine()}",
        f"Linux {OLDEST[0]}.{OLDEST[1]} or newer guards packet sockets too; with an older one drop CAP_NET_RAW"
        if old
        else "",
    )


def _privileges() -> Finding:
    """What the guard can give up here: tried in a child that gives it up."""

    def give_up() -> list[object]:
        from egress.privileges import settle, take_up

        held = settle()
        take_up()
        return [held.words(), held.filtered and bool(held.landlock)]

    try:
        words, whole = apart(give_up)
    except ScratchError as error:
        words, whole = f"could not be tried: {error}", False
    advice = "a kernel with CONFIG_SECCOMP_FILTER and CONFIG_SECURITY_LANDLOCK (Linux 5.13), on x86_64 or aarch64"
    return Finding(
        "privileges",
        "ok" if whole else "limited",
        "least privilege",
        f"once it is up: {words}",
        "" if whole else advice,
    )


# -- packets ---------------------------------------------------------------------------------------------------------
_WHERE = {
    "scratch": "loaded and taught in a namespace of its own",
    "user": "loaded and taught in a user namespace of its own",
    "check": "checked by the kernel; no namespace may be made here to load them in",
}
_RAW = {
    "prefix": "the netdev egress hook holds them, on all devices at once or by name",
    "devices": "the netdev egress hook holds them, device by device; new ones as they appear",
    "none": "no netdev egress hook: a program with CAP_NET_RAW can send past the rules",
}


def _packets(tried: Trial) -> Iterator[Finding]:
    if not tried.where:
        yield Finding(
            "ruleset",
            "missing",
            "our rulesets",
            f"nothing could be tried: {tried.problem}",
            "run this with CAP_NET_ADMIN, or where user namespaces are allowed",
        )
        return
    if tried.problem:
        yield Finding(
            "ruleset",
            "missing",
            "our rulesets",
            f"refused by the kernel: {tried.problem}",
            "load its nf_tables, nf_conntrack, nf_nat and nft_reject_inet modules on the host",
        )
        return
    yield Finding("ruleset", "ok", "our rulesets", _WHERE[tried.where])
    raw = tried.raw or "none"
    advice = "drop CAP_NET_RAW from the sandbox (docker run --cap-drop NET_RAW), or use Linux 5.16 or newer"
    yield Finding(
        "packet_sockets",
        "limited" if raw == "none" else "ok",
        "packet sockets",
        _RAW[raw],
        advice if raw == "none" else "",
    )
    for name, title, holds, good, lost, advice in (
        (
            "conntrack",
            "connection tracking",
            tried.conntrack,
            "flows can be listed and cut",
            "flows cannot be listed, so none is cut when its rule goes",
            "load nf_conntrack_netlink on the host",
        ),
        (
            "sock_destroy",
            "SOCK_DESTROY",
            tried.destroy,
            "programs hear of a cut connection at once",
            "programs hear of a cut connection when they next send",
            "a kernel with CONFIG_INET_DIAG_DESTROY",
        ),
        (
            "nflog",
            "NFLOG",
            tried.nflog,
            "refused packets are told with address and port",
            "refused packets are counted, not told",
            "load nfnetlink_log on the host",
        ),
        (
            "ct_timeout",
            "ct timeout",
            tried.ct_timeout,
            "redirected DNS is forgotten after 2 s",
            "a flood of DNS queries can use up redirections for 30 s",
            "load nfnetlink_cttimeout on the host",
        ),
        (
            "socket_match",
            "socket match",
            tried.socket_match,
            "packets to our own sockets are recognised by socket",
            "packets to our own sockets are recognised by their ports",
            "load nft_socket on the host",
        ),
        (
            "ip_options",
            "IPv4 options",
            tried.ip_options,
            "source-routed packets are refused",
            "source-routed packets to allowed addresses pass",
            "a kernel that matches IP options (Linux 5.3)",
        ),
    ):
        if holds is not None:
            yield Finding(name, "ok" if holds else "limited", title, good if holds else lost, "" if holds else advice)


def _xdp() -> Finding:
    from egress.firewall.xdp import NEEDS

    state = surroundings.xdp_sockets()
    words = {
        "": "none in this kernel",
        "ours": "CAP_NET_RAW is here: the start takes their places, so that the sandbox gets none",
        "lacking": "no CAP_NET_RAW to take their places: a program that has it can send past the rules",
    }
    lacks = state == "lacking"
    return Finding("xdp_sockets", "limited" if lacks else "ok", "XDP sockets", words[state], NEEDS if lacks else "")


def _stacks(purpose: str) -> Finding:
    from egress.netns import Namespace
    from egress.runtimes import below, beside

    title = "network stacks"
    foreign = below()
    if foreign:
        return Finding("stacks", _lack(purpose, SERVE), title, *foreign.split("; ", 1))
    try:
        found = beside(Namespace())
    except OSError as error:
        return Finding("stacks", "limited", title, f"cannot be looked for: {error.strerror}")
    if found is None:
        return Finding("stacks", "ok", title, "only the kernel's own sends from here")
    words, _, advice = found.words.rpartition(": ")
    return Finding("stacks", _lack(purpose, SERVE), title, words, advice)


# -- this namespace --------------------------------------------------------------------------------------------------
def _namespace(purpose: str, *, admin: bool) -> Iterator[Finding]:
    ipv6 = surroundings.ipv6_loopback()
    yield Finding(
        "ipv6_loopback",
        "ok" if ipv6 else "note",
        "IPv6 loopback",
        "::1 is here: IPv6 DNS is answered" if ipv6 else "no ::1: IPv6 DNS is refused, not answered; IPv4 goes on",
        "",
    )
    yield _stacks(purpose)
    standing = surroundings.standing() if admin else ""
    if standing:
        yield Finding("standing", "note", "a ruleset of ours", standing)
    if not admin:
        return
    others, problem = surroundings.interceptors()
    if problem:
        yield Finding("interceptors", "limited", "other interceptors", f"cannot be looked for: {problem}")
    elif others:
        yield Finding(
            "interceptors",
            _lack(purpose, SERVE),
            "other interceptors",
            others,
            "two transparent interceptors in one namespace undo each other: leave this pod out of the mesh "
            "(Istio: sidecar.istio.io/inject=false; Linkerd: linkerd.io/inject=disabled)",
        )
    elif surroundings.legacy_nat():
        yield Finding(
            "interceptors",
            "note",
            "other interceptors",
            "the old iptables has a nat table here, whose rules are not to be seen from here",
            "look yourself: iptables-legacy -t nat -S OUTPUT",
        )
    else:
        yield Finding("interceptors", "ok", "other interceptors", "nobody else redirects what programs send")


def _resolvers(purpose: str, *, ask: bool) -> Iterator[Finding]:
    upstreams, problem = surroundings.upstreams(os.environ)
    if problem:
        yield Finding(
            "resolvers",
            _lack(purpose, SERVE),
            "resolvers",
            problem,
            "set OPENSANDBOX_EGRESS_DNS_UPSTREAM to the address of a resolver outside the sandbox"
            if purpose == SERVE
            else "egress run asks them from this side, so it can use them all the same",
        )
        return
    shown = ", ".join(surroundings.spelled(upstream) for upstream in upstreams)
    if not ask:
        yield Finding("resolvers", "ok", "resolvers", f"{shown}: usable, not asked")
        return
    silent = [surroundings.spelled(upstream) for upstream in surroundings.silent(upstreams)]
    if silent:
        yield Finding(
            "resolvers",
            "limited",
            "resolvers",
            f"{shown}: no answer from {', '.join(silent)} within 1.5 s",
            "can this machine reach them on UDP port 53? else name others in OPENSANDBOX_EGRESS_DNS_UPSTREAM",
        )
    else:
        yield Finding("resolvers", "ok", "resolvers", f"{shown}: answering")


def _service() -> Iterator[Finding]:
    """What only the sidecar needs."""
    problem = surroundings.settings(os.environ)
    yield Finding(
        "settings",
        "missing" if problem else "ok",
        "settings",
        problem or "the environment's settings can be used",
        "correct the variable" if problem else "",
    )
    if problem:
        return
    state, words, advice = surroundings.api_port(os.environ)
    yield Finding("api_port", {"free": "ok", "ours": "note"}.get(state, "missing"), "API port", words, advice)
    for name, title, path, needed in surroundings.folders(os.environ):
        problem = surroundings.unwritable(path)
        if not problem:
            yield Finding(name, "ok", title, f"{path} can be written")
        else:
            yield Finding(
                name,
                "missing" if needed else "note",
                title,
                f"{path}: {problem}",
                "mount a writable volume there (docker run -v NAME:/var/egress, --tmpfs /run)",
            )


# -- sandboxes of our own --------------------------------------------------------------------------------------------
def _sandboxes(purpose: str) -> Iterator[Finding]:
    """What only `egress run` needs; for the sidecar these are notes."""
    problem = surroundings.user_namespaces()
    if problem:
        yield Finding(
            "user_namespaces",
            "note" if os.geteuid() == 0 else _lack(purpose, RUN),
            "user namespaces",
            problem,
            "for egress run without root: sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=10000 or "
            "kernel.apparmor_restrict_unprivileged_userns=0, whichever there is; in a container: not there",
        )
    else:
        yield Finding(
            "user_namespaces", "ok", "user namespaces", "an ordinary user may make them: egress run works without root"
        )
    name, problem = surroundings.connectivity()
    if name:
        yield Finding("connectivity", "ok", "user-mode network", f"{name}: sandboxes of egress run get out through it")
    else:
        problem, _, advice = problem.partition("; ")
        yield Finding("connectivity", _lack(purpose, RUN), "user-mode network", problem, advice)


def _resources() -> Iterator[Finding]:
    available = surroundings.memory()
    if available is not None:
        enough = available >= 64 << 20
        yield Finding(
            "memory",
            "ok" if enough else "limited",
            "memory",
            f"{available >> 20} MiB to be had",
            "" if enough else "the sidecar takes up to 25 MiB, more with many learned addresses: allow it 64",
        )
    limit = surroundings.descriptors()
    enough = limit >= 1024
    yield Finding(
        "descriptors",
        "ok" if enough else "limited",
        "open files",
        f"up to {limit}",
        "" if enough else "raise the limit to 1024 or more (ulimit -n, docker run --ulimit nofile=)",
    )
