"""`egress docker run`: a container behind a sidecar of its own, with the docker command's own options."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from egress.commands.output import GOOD, CommandError, Outcome, run

if TYPE_CHECKING:
    from egress.docker.options import Divided
    from policies.model import NetworkPolicy

FAILED = 125
IMAGE = "sallyport-egress"
READY_WITHIN = 30.0
"""Seconds that the sidecar has until its policy is in force."""
_RULES_MOST = 120 * 1024  # bytes: the kernel's limit for one variable is 128 KiB
_RELAYED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

HELP = f"""\
usage: egress docker run --policy FILE|PRESET [DOCKER RUN OPTION ...] -- IMAGE [COMMAND ...]

Run a container behind a sidecar of its own: the sidecar first, and when its policy is in force the container, in the
sidecar's network, without NET_ADMIN and NET_RAW. Both are removed when it ends.

options:
  --policy FILE|PRESET   a policy file (JSON or YAML) or the name of a preset
  --allow TARGET         allow a target, above the policy; may be given again
  --deny TARGET          deny a target, whatever else allows it
  --upstream ADDRESS     the resolver that the sidecar asks (default: Docker's choice; needed with another --network)
  --sidecar-image IMAGE  the sidecar (default: {IMAGE}, built by: docker build -f Dockerfile.egress -t {IMAGE} .)
and those of docker run. What has to do with the network (-p, --network, --dns, --hostname, --add-host ...) is given to
the sidecar; what would defeat the guard is refused: --privileged, --network host, --cap-add NET_ADMIN, --pid ...

examples:
  egress docker run --policy web-only -- debian:bookworm-slim bash -c 'apt-get update'
      names are resolved and reached on the web's ports, private addresses are not
  egress docker run --allow api.example.com:443 -it -v "$PWD:/work" -w /work -- python:3.12 python agent.py
      one name, one port; a terminal and a folder as docker run has them
  egress docker run --policy policy.yaml -p 127.0.0.1:8080:80 -- nginx
      a published port leads to the container as usual

While it runs: docker exec NAME-egress egress policy get (or add), NAME being the container's --name.

exit code: the container's, as docker run gives it; {FAILED} where the sidecar could not be started, 2 where this
command line is wrong. Signals are passed on to the container.
"""


def main(argv: list[str]) -> int:
    """Run it to its end; returns the exit code."""
    return run("docker run", lambda: _work(argv))


def _work(argv: list[str]) -> Outcome:
    from egress.docker.options import OptionError, divide

    options = argv[: argv.index("--")] if "--" in argv else argv
    if any(word in ("-h", "--help") for word in options[:1]):
        return Outcome(GOOD, HELP)
    try:
        divided = divide(argv)
    except OptionError as error:
        raise CommandError(f"{error}; see egress docker run --help") from None
    policy = _policy(divided)
    rules = json.dumps(policy.to_document(), separators=(",", ":"))
    if len(rules) > _RULES_MOST:
        raise CommandError(f"the policy is {len(rules)} bytes, a variable takes {_RULES_MOST}; use egress docker watch")
    upstream = ",".join(value for name, value in divided.ours if name == "upstream") or ",".join(divided.resolvers)
    if divided.network not in ("", "bridge", "default") and not upstream:
        raise CommandError(
            f"--network {divided.network}: Docker's own resolver of such a network would ask whatever the container "
            "likes, so it is not used; name one that the sidecar asks: --upstream 192.0.2.53"
        )
    docker = shutil.which("docker")
    if docker is None:
        raise CommandError("the docker command is not here; install Docker's client", FAILED)
    return Outcome(_run(docker, divided, rules, upstream))


def _policy(divided: Divided) -> NetworkPolicy:
    from egress.commands.reading import inline_rules, load
    from policies.model import NetworkPolicy

    named = [value for name, value in divided.ours if name == "policy"]
    allow = [value for name, value in divided.ours if name == "allow"]
    deny = [value for name, value in divided.ours if name == "deny"]
    if len(named) > 1:
        raise CommandError("--policy is given twice; one is the policy, --allow and --deny stand above it")
    if not named and not allow and not deny:
        raise CommandError("no policy given; --policy FILE, or --allow and --deny; see egress docker run --help")
    base = load(named[0]) if named else NetworkPolicy()
    return base._replace(egress=(*inline_rules(allow, deny), *base.egress))


def _run(docker: str, divided: Divided, rules: str, upstream: str) -> int:
    """Sidecar, container, and nothing left of either. Raises CommandError."""
    image = next((value for name, value in reversed(divided.ours) if name == "sidecar-image"), IMAGE)
    name = f"{divided.name or f'sallyport-{secrets.token_hex(4)}'}-egress"
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_RELAYED, signal.SIGCHLD))
    create = [
        docker, "create", "--name", name, "--label", "sallyport.sidecar=run", "--cap-drop=ALL", "--cap-add=NET_ADMIN",
        "--security-opt=no-new-privileges", "--read-only", "--tmpfs=/run", *divided.sidecar,
        "--env", f"OPENSANDBOX_EGRESS_RULES={rules}", "--env", "OPENSANDBOX_EGRESS_HTTP_ADDR=127.0.0.1:18080",
    ]  # fmt: skip
    if upstream:
        create += ["--env", f"OPENSANDBOX_EGRESS_DNS_UPSTREAM={upstream}"]
    if _quietly([docker, "image", "inspect", image]).returncode:
        raise CommandError(
            f"the image {image} is not here; build it: docker build -f Dockerfile.egress -t {image} . "
            "(or give --sidecar-image)",
            FAILED,
        )
    made = _quietly([*create, image])
    if made.returncode:
        raise CommandError(f"the sidecar cannot be created: {_last(made.stderr)}", FAILED)
    sidecar = made.stdout.strip()
    ours = f"sallyport.guarded-by={sidecar}"
    try:
        started = _quietly([docker, "start", sidecar])
        if started.returncode:
            raise CommandError(f"the sidecar cannot be started: {_last(started.stderr)}", FAILED)
        _await(docker, sidecar)
        argv = [docker, "run", "--rm", f"--network=container:{sidecar}", "--cap-drop=NET_ADMIN", "--cap-drop=NET_RAW"]
        return _relay([*argv, *divided.container, f"--label={ours}", divided.image, *divided.command])
    finally:
        # As a rule the container is gone; a docker command that was ended too early, or killed, leaves it behind.
        left = _quietly([docker, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={ours}"]).stdout.split()
        _quietly([docker, "rm", "--force", "--volumes", *left, sidecar])


def _quietly(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """One call of the docker command, out of the terminal's reach: a Ctrl-C is ours to answer."""
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True, check=False
    )


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Run 'docker")]
    return lines[-1] if lines else "no reason given"


def _await(docker: str, sidecar: str) -> None:
    """Until its policy is in force and its DNS answers: its log says so. Raises CommandError."""
    end = time.monotonic() + READY_WITHIN
    said = b""
    with subprocess.Popen(
        [docker, "logs", "--follow", sidecar],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as log:
        assert log.stdout is not None
        try:
            while b'"egress.loaded"' not in said:
                heard = signal.sigtimedwait(_RELAYED[:4], 0)
                if heard is not None:
                    raise CommandError(f"interrupted by signal {heard.si_signo}", 128 + heard.si_signo)
                if time.monotonic() > end:
                    raise CommandError(f"the sidecar is not ready after {READY_WITHIN:g} s: {_words(said)}", FAILED)
                if select.select([log.stdout], [], [], 0.05)[0]:
                    data = os.read(log.stdout.fileno(), 65536)
                    if not data:
                        raise CommandError(f"the sidecar ended: {_words(said)}", FAILED)
                    said += data
        finally:
            log.kill()


def _words(said: bytes) -> str:
    line = _last(said.decode(errors="replace"))
    try:
        entry = json.loads(line)
        return str(entry.get("error") or entry.get("msg") or line)
    except ValueError:
        return line


def _relay(argv: list[str]) -> int:
    """Run the docker command in our place: its terminal, its exit code, our signals."""
    sys.stdout.flush()
    child = os.posix_spawn(argv[0], argv, os.environ, setsigmask=())
    while True:
        heard = signal.sigwaitinfo((*_RELAYED, signal.SIGCHLD))
        if heard.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
        elif heard.si_code <= 0:  # a person's or a program's; what a terminal sends, the docker command has had itself
            os.kill(child, heard.si_signo)
