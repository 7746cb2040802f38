"""Who is measured: ours, dnsmasq with and without `--nftset`, unbound; each at its best setting for the mode.

All answer on loopback behind an nftables redirect in the sandbox, all ask the same resolver on the same port, and
nobody's questions to it are tracked. Ours brings its own ruleset, which does far more than redirect.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.load import lookup
from bench.place import UPSTREAM_PORT, wait_for

if TYPE_CHECKING:
    from bench.place import Place, Process, Sandbox

TOKEN = "of-the-bench"
API_PORT = 18080
POLICY: dict[str, Any] = {
    "defaultAction": "deny",
    "egress": [
        {"action": "deny", "target": "blocked.example.com"},
        *({"action": "allow", "target": f"service{number}.example.org"} for number in range(8)),
        {"action": "deny", "target": "10.0.0.0/8"},
        {"action": "allow", "target": "*.example.com"},
    ],
}
_LISTEN = 5301
_PEERS_RULES = """
table inet bench {{
  set learned4 {{
    type ipv4_addr
    flags timeout
    timeout 2m
    size 1048576
  }}
  chain raw_out {{
    type filter hook output priority -300; policy accept;
    ip daddr {gateway} udp dport {upstream} notrack
  }}
  chain raw_in {{
    type filter hook prerouting priority -300; policy accept;
    ip saddr {gateway} udp sport {upstream} notrack
  }}
  chain intercept {{
    type nat hook output priority -110; policy accept;
    udp dport 53 redirect to :{listen}
  }}
  chain output {{
    type filter hook output priority 0; policy accept;
    ip daddr @learned4 accept
  }}
}}
"""


class Contender:
    """One program in its sandbox. `start` begins a fresh life; the ruleset of an earlier one goes first."""

    name = ""
    updates = False  # every answer lands in a set

    def __init__(self, place: Place) -> None:
        self.place = place
        self.sandbox: Sandbox = place.sandbox(type(self).__name__.lower())
        self.process: Process | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="sallyport-bench-")
        self.folder = Path(self._folder.name)

    @property
    def running(self) -> Process:
        assert self.process is not None, "not started"
        return self.process

    def argv(self) -> list[str]:
        raise NotImplementedError

    def env(self) -> dict[str, str]:
        return {}

    def prepare(self) -> None:
        self.sandbox.namespace.nft(
            _PEERS_RULES.format(gateway=self.sandbox.gateway, upstream=UPSTREAM_PORT, listen=_LISTEN)
        )

    def start(self, *, wait: bool = True) -> None:
        self.stop()
        self.sandbox.namespace.nft("flush ruleset")
        self.prepare()
        self.process = self.place.start(self.sandbox.namespace, self.argv(), self.place.cores.server, self.env())
        if wait:
            wait_for(self.name, self.answers)

    def answers(self) -> bool:
        """Does it answer a question now?"""
        if not self.running.alive():
            raise RuntimeError(f"{self.name} ended by itself")
        return lookup(self.sandbox, "p-first.example.com", 0.05) is not None

    def stop(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None

    def close(self) -> None:
        self.stop()
        self._folder.cleanup()

    def learned(self) -> int:
        """How many addresses its sets hold."""
        listed = json.loads(self.sandbox.namespace.run(["nft", "-j", "list", "sets"], check=True).stdout)
        names = ("learned4", "learned4_0")
        found = 0
        for entry in listed["nftables"]:
            one = entry.get("set")
            if one and one["name"].startswith(names[0]):
                text = self.sandbox.namespace.run(
                    ["nft", "-j", "list", "set", one["family"], one["table"], one["name"]], check=True
                ).stdout
                for part in json.loads(text)["nftables"]:
                    found += len(part.get("set", {}).get("elem", ()))
        return found


class Ours(Contender):
    name = "sallyport"
    updates = True

    def prepare(self) -> None:
        """Nothing: the first thing it does is to lock down."""

    def argv(self) -> list[str]:
        return [str(Path(sys.prefix, "bin", "egress")), "serve"]

    def env(self) -> dict[str, str]:
        prefix = "OPENSANDBOX_EGRESS_"
        return {
            prefix + "RULES": json.dumps(POLICY),
            prefix + "DNS_UPSTREAM": f"{self.sandbox.gateway}:{UPSTREAM_PORT}",
            prefix + "TOKEN": TOKEN,
            prefix + "SOCKET": str(self.folder / "egress.sock"),
            prefix + "LOG_LEVEL": "error",
            prefix + "NAME_BUDGET": "100000000",  # the load is millions of names; they are counted all the same
            prefix + "NAME_BUDGET_RATE": "1000000",
        }

    def ready(self) -> bool:
        """Does the control API listen?"""
        with self.sandbox.namespace.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.settimeout(0.5)
            return sock.connect_ex(("127.0.0.1", API_PORT)) == 0


class OursAsShipped(Ours):
    """By the interpreter of the image, Debian's: it is built with profile-guided optimisation, others often are not."""

    name = "sallyport, Debian's Python"
    python = "/usr/bin/python3"

    def argv(self) -> list[str]:
        return [self.python, "-m", "egress", "serve"]

    def env(self) -> dict[str, str]:
        return {**super().env(), "PYTHONPATH": sysconfig.get_path("purelib")}

    @classmethod
    def available(cls) -> bool:
        """Is it here, of the version that the packages are for, and another one than ours?"""
        ask = [cls.python, "-c", "import sys; print(*sys.version_info[:2], sys.base_prefix)"]
        try:
            told = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()
        except (OSError, subprocess.CalledProcessError):
            return False
        return told[:2] == [str(part) for part in sys.version_info[:2]] and told[2] != sys.base_prefix


class Dnsmasq(Contender):
    name = "dnsmasq"
    cache = 150

    def argv(self) -> list[str]:
        return [
            shutil.which("dnsmasq", path="/usr/sbin:/usr/bin") or "dnsmasq",
            "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--no-poll", "--user=root",
            "--pid-file=", "--log-facility=/dev/null", "--listen-address=127.0.0.1", "--bind-interfaces",
            f"--server={self.sandbox.gateway}#{UPSTREAM_PORT}", f"--port={_LISTEN}", f"--cache-size={self.cache}",
            *self.extra(),
        ]  # fmt: skip

    def extra(self) -> list[str]:
        return []


class DnsmasqBig(Dnsmasq):
    name = "dnsmasq, cache 10,000"
    cache = 10_000


class DnsmasqSet(Dnsmasq):
    name = "dnsmasq --nftset"
    updates = True

    def extra(self) -> list[str]:
        return ["--nftset=/example.com/4#inet#bench#learned4"]


class DnsmasqSetBig(DnsmasqSet):
    name = "dnsmasq --nftset, cache 10,000"
    cache = 10_000


class Unbound(Contender):
    name = "unbound"

    def argv(self) -> list[str]:
        config = self.folder / "unbound.conf"
        config.write_text(
            f"""
server:
    interface: 127.0.0.1@{_LISTEN}
    access-control: 0.0.0.0/0 allow
    do-daemonize: no
    do-ip6: no
    chroot: ""
    directory: "{self.folder}"
    pidfile: ""
    username: ""
    use-syslog: no
    logfile: "/dev/null"
    verbosity: 0
    num-threads: 1
    module-config: "iterator"
    do-not-query-localhost: no
    minimal-responses: yes
    so-rcvbuf: 1m
    msg-cache-size: 16m
    rrset-cache-size: 16m
    cache-min-ttl: 0
    outgoing-range: 4096
    num-queries-per-thread: 2048
remote-control:
    control-enable: no
forward-zone:
    name: "."
    forward-addr: {self.sandbox.gateway}@{UPSTREAM_PORT}
"""
        )
        os.chmod(self.folder, 0o755)
        return [shutil.which("unbound", path="/usr/sbin:/usr/bin") or "unbound", "-d", "-p", "-c", str(config)]
