"""`egress run`: any command, in a sandbox of its own that reaches what a policy names and nothing else."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.isolation.guard import Seat
    from egress.isolation.session import Options
    from policies.model import NetworkPolicy, Rule

USAGE = 2
FAILED = 125

EPILOG = """\
examples:
  egress run -- curl https://api.example.com
      nothing is allowed; the summary at the end names the rule that would have been needed
  egress run --allow api.example.com --allow '*.example.com:443' -- ./agent
      a name, and any name below another, on one port
  egress run --policy web-only --deny tracker.example.com -- npm test
      a ready-made policy (or a file), with an exception: --deny wins over --allow, both over --policy
  egress run --allow 192.0.2.10:5432 --share-path /run/postgresql -- psql
      an address with its port, and one folder of /run with the sockets in it
  egress run --offline -- make test
      loopback only, on purpose
  egress run --json denied.json --quiet --allow example.com -- ./job; jq .deniedNames denied.json
      the same summary for a program

targets: a name (api.example.com), all names below one (*.example.com), any name (*), an address or a network
(192.0.2.10, 192.0.2.0/24), each with an optional port (api.example.com:443, [2001:db8::1]:443).

what the command gets: the same user, home and working folder; fresh /tmp, /var/tmp, /run and /dev; a network, process
list and IPC of its own; no capabilities and no way to gain them (sudo and setuid programs do not work). As root, files
outside home, working folder and shared paths are read-only.

what is NOT contained:
  - files: what the user may read can be read and sent to every allowed target; what the user may write in home and
    working folder (shell start-up files, git hooks) can be changed and may run later outside
  - unix sockets: those that are listening when the run starts are covered, wherever they are; one that a program
    creates later in a visible folder (not /run or /tmp), or that belongs to another network namespace, can be reached
  - addresses of this machine other than its loopback are ordinary addresses: the policy decides about them
  - time, memory and processor: nothing is limited
  - the kernel itself: this is a guard for the network, not a virtual machine

connectivity: pasta (package passt) or slirp4netns; without them the command has only its loopback, and you are told.

exit code: the command's; 128 + N when signal N ended it; 125 when the sandbox could not be built or lost its guard,
126 and 127 when the command could not be run or found, 2 when this command line is wrong.
"""


def main(argv: list[str], guard: Callable[[Seat], int] | None = None) -> int:
    """Run the command line; returns the exit code. `guard` is another guard than the real one (tests)."""
    options = _parse(argv)
    quiet: bool = options.quiet

    def say(text: str) -> None:
        if not quiet:
            print(f"egress run: {text}", file=sys.stderr, flush=True)

    from egress.isolation.channel import SetupError

    try:
        report_to = _open_report(options.json)
        session_options = _prepare(options, say)
    except (OSError, ValueError) as error:
        print(f"egress run: {_line(error)}", file=sys.stderr)
        return USAGE
    if guard is None:
        from egress.outside import run_guard

        guard = run_guard
    from egress.isolation import session

    try:
        code, report = session.run(session_options, guard)
    except SetupError as error:
        print(f"egress run: {error}", file=sys.stderr)
        return FAILED
    except session.Interrupted as interrupted:
        return 128 + interrupted.number
    if report_to is not None:
        with os.fdopen(report_to, "w", encoding="utf-8") as file:
            file.write(report.to_json(code))
    if not quiet:
        sys.stderr.write(report.to_text())
        sys.stderr.flush()
    return code


def _prepare(options: argparse.Namespace, say: Callable[[str], None]) -> Options:
    """Check everything that can be checked before a process is started."""
    from egress.hostconfig import host_config
    from egress.isolation import environment, mounts, session

    cwd = _cwd()
    uid = os.getuid()
    runtime = f"/run/user/{uid}"
    shared = tuple(os.path.abspath(path) for path in options.share_path)
    for path in shared:
        if not os.path.lexists(path):
            raise ValueError(f"--share-path {path}: there is no such file, folder or socket")
        if os.path.realpath(path) in ("/", "/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp"):  # noqa: S108
            raise ValueError(f"--share-path {path}: name what is needed in it, not the whole of it")
    environ, removed = environment.build(os.environ, options.env, shared, runtime)
    plan = mounts.make_plan(
        cwd=cwd,
        home=_home(),
        shared=shared,
        guarded=uid == 0,
        runtime_folder=runtime,
        nameserver=session.NAMESERVER,
    )
    if options.verbose and removed:
        say(f"not passed on: {', '.join(removed)} (--env NAME brings one back)")
    return session.Options(
        command=options.command,
        environ=environ,
        cwd=cwd,
        plan=plan,
        config=host_config(os.environ),
        policy=_policy(options),
        offline=options.offline,
        say=say,
    )


def _policy(options: argparse.Namespace) -> NetworkPolicy:
    """--deny before --allow before --policy, each in the order it was written; the first rule that matches decides."""
    from policies.model import Action, NetworkPolicy
    from policies.parser import parse_target_list

    base = _base(options.policy) if options.policy else NetworkPolicy()
    rules: list[Rule] = []
    for action, flag, targets in ((Action.DENY, "--deny", options.deny), (Action.ALLOW, "--allow", options.allow)):
        for target in targets:
            found = parse_target_list(target, action, flag)
            if not found:
                raise ValueError(f"{flag}: an empty target; write a name or an address")
            rules.extend(found)
    return base._replace(egress=(*rules, *base.egress))


def _base(text: str) -> NetworkPolicy:
    """A file by its path, else a preset by its name."""
    from policies import presets
    from policies.parser import parse_policy

    if not os.path.exists(text):
        if os.sep not in text and text in presets.names():
            return presets.load(text)
        raise ValueError(f"--policy {text}: neither a file nor a preset; presets: {', '.join(presets.names())}")
    with open(text, "rb") as file:
        data = file.read()
    try:
        return parse_policy(data, yaml=text.endswith((".yaml", ".yml")))
    except ValueError as error:
        raise ValueError(f"--policy {text}: {error}") from error


def _open_report(text: str) -> int | None:
    if not text:
        return None
    if text.isdecimal():
        number = int(text)
        try:
            return os.dup(number)
        except OSError as error:
            raise ValueError(f"--json {text}: no such open file descriptor") from error
    return os.open(text, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise ValueError("the working folder is gone; change to one that exists") from error


def _home() -> str:
    home = os.environ.get("HOME", "")
    if home.startswith("/"):
        return home
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


def _line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"egress run: {message}\nSee egress run --help", file=sys.stderr)
        raise SystemExit(USAGE)


def _parse(argv: list[str]) -> argparse.Namespace:
    """The options before the first `--`, the command after it; without one the first word that is no option."""
    parser = _parser()
    if "--" in argv:
        at = argv.index("--")
        options = parser.parse_args(argv[:at])
        if options.command:
            parser.error(f"{options.command[0]!r} stands before --: options go there, the command after it")
        options.command = argv[at + 1 :]
    else:
        options = parser.parse_args(argv)
    if not options.command:
        parser.error("no command given; write it after --, as in: egress run --allow example.com -- curl example.com")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="egress run",
        usage="egress run [OPTION ...] -- COMMAND [ARGUMENT ...]",
        description="Run a command in a sandbox of its own that reaches what a policy names, and nothing else. "
        "Works as root and as an ordinary user.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add: Callable[..., object] = parser.add_argument
    add("--policy", metavar="FILE|PRESET", help="a policy file (JSON or YAML) or the name of a preset")
    add("--allow", metavar="TARGET", action="append", default=[], help="allow a target; may be given again")
    add("--deny", metavar="TARGET", action="append", default=[], help="deny a target, whatever else allows it")
    add("--share-path", metavar="PATH", action="append", default=[],
        help="let the command see this file, folder or socket although it would be hidden or read-only")  # fmt: skip
    add("--env", metavar="NAME[=VALUE]", action="append", default=[],
        help="set a variable, or pass on one that is taken out otherwise (SSH_AUTH_SOCK, DISPLAY, ...)")  # fmt: skip
    add("--offline", action="store_true", help="loopback only: start no network program")
    add("--json", metavar="FILE|FD", default="", help="write what was refused as JSON to a file or open descriptor")
    add("--quiet", action="store_true", help="no notes and no summary on standard error")
    add("--verbose", action="store_true", help="say what was left out of the environment")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)
    return parser
