"""The command's environment: the caller's, without what points at the host's services.

A variable that names a socket or a bus of the host is useless inside (the socket is not there) and makes programs
hang or complain, so it goes. It stays where its value lies under a path that was shared on purpose, and `--env`
brings any variable back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

POINTERS = frozenset(
    (
        "SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS",
        "DBUS_STARTER_ADDRESS", "DOCKER_HOST", "CONTAINER_HOST", "CONTAINERD_ADDRESS", "BUILDKIT_HOST",
        "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC",
        "DISPLAY", "WAYLAND_DISPLAY", "WAYLAND_SOCKET", "XAUTHORITY", "SESSION_MANAGER", "ICEAUTHORITY",
        "PULSE_SERVER", "PIPEWIRE_REMOTE", "TMUX", "TMUX_PANE", "STY", "VSCODE_IPC_HOOK", "VSCODE_IPC_HOOK_CLI",
        "VSCODE_GIT_IPC_HANDLE", "VSCODE_GIT_ASKPASS_NODE", "KITTY_LISTEN_ON", "NVIM", "NVIM_LISTEN_ADDRESS",
        "SUDO_ASKPASS", "SSH_ASKPASS", "KRB5CCNAME",
    )
)  # fmt: skip
"""Variables whose whole use is to lead to a process of the host."""


def build(
    environ: Mapping[str, str], wanted: Sequence[str], shared: Sequence[str], runtime_folder: str
) -> tuple[dict[str, str], list[str]]:
    """The command's variables, and the names of those that were taken out.

    `wanted` are `--env` texts: NAME=VALUE sets, NAME passes the caller's. `shared` are the paths of `--share-path`.
    Raises `ValueError` where a wanted text has no name.
    """
    result: dict[str, str] = {}
    removed: list[str] = []
    for name, value in environ.items():
        if name.startswith("OPENSANDBOX_EGRESS_"):
            continue  # the guard's settings, its token among them, are none of the command's business
        if name in POINTERS and not any(path in value for path in shared):
            removed.append(name)
            continue
        result[name] = value
    if "XDG_RUNTIME_DIR" in result:
        result["XDG_RUNTIME_DIR"] = runtime_folder
    for text in wanted:
        name, equals, value = text.partition("=")
        if not name or "\0" in text:
            raise ValueError(f"--env {text!r}: write NAME=VALUE, or NAME to pass the variable on")
        if equals:
            result[name] = value
        elif name in environ:
            result[name] = environ[name]
        removed = [other for other in removed if other != name]
    return result, sorted(removed)
