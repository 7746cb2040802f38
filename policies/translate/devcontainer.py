"""The init-firewall.sh of development containers: a set of addresses, filled from a list of domains and from GitHub's
published ranges, and a few iptables rules for OUTPUT. The script is read, never run; only what is known in it counts.

    for domain in "api.example.com" "cdn.example.com"; do      the domains
    gh_ranges=$(curl -s https://api.github.com/meta)           GitHub's ranges: jq '(.web + .api + .git)[]'
    ipset add allowed-domains 192.0.2.0/24                     a network
    iptables -A OUTPUT -p tcp --dport 22 -j ACCEPT             a port, to anywhere
    iptables -A OUTPUT -m set --match-set allowed-domains dst -j ACCEPT
"""

from __future__ import annotations

import re
import shlex

from policies.model import PolicyError
from policies.name import show
from policies.source import read_text
from policies.translate.draft import ALL_PORTS, WHOLE, Draft, Options, Reach, Translation, network, reach, target
from policies.translate.tree import Node, read
from policies.values import NamedTuple

_FOR = re.compile(r"for\s+\w+\s+in\s+(.*?)\s*;?\s*(?:\n\s*)?do\b", re.DOTALL)
_META_KEYS = re.compile(r"jq\s[^\n]*?\(((?:\.\w+\s*\+?\s*)+)\)\[\]")
_STATES = ("ESTABLISHED", "RELATED")


class Line(NamedTuple):
    """What an iptables line for OUTPUT says; `set` where it is about the set of addresses."""

    accepts: bool
    protocol: str
    ports: tuple[tuple[int, int], ...]
    destination: str
    set: bool
    place: str


def translate(text: str, options: Options) -> Translation:
    """Translate a script. Raises PolicyError (`line 7`)."""
    text = read_text(text)
    draft = Draft(options)
    lines = _lines(draft, text)
    if not any(line.set for line in lines):
        raise PolicyError(
            "$", "no iptables rule for OUTPUT accepts a set of addresses: not a firewall script as is known"
        )
    for line in lines:
        if not line.accepts:
            for everything in (line.destination,) if line.destination else ("0.0.0.0/0", "::/0"):
                draft.deny(everything, _ports(line), line.place)
        elif line.set:
            _set(draft, text, _ports(line), options.github_meta)
        else:
            ports = _ports(line)
            if not line.destination and ports.holds(53):
                draft.allow_asking("*", line.place, "port 53 is open to a resolver")
            draft.allow_network(network(line.destination or "0.0.0.0/0", line.place), (), ports, f"from {line.place}")
    return draft.finish()


def _ports(line: Line) -> Reach:
    if not line.protocol:
        return WHOLE
    return reach([(line.protocol, first, last) for first, last in line.ports or ALL_PORTS])


def _set(draft: Draft, text: str, ports: Reach, meta: str) -> None:
    for match in _FOR.finditer(text):
        place = f"line {text.count(chr(10), 0, match.start()) + 1}"
        try:
            words = shlex.split(match[1].replace("\\\n", " "), comments=True)
        except ValueError as error:
            raise PolicyError(place, f"not a list of words: {error}") from None
        for word in words:
            if "$" in word or "`" in word:
                draft.gap(place, f"left out: {show(word)} is known only when the script runs")
            else:
                target(word, place)
                draft.allow(word, ports, place)
    for number, line in enumerate(text.split("\n"), 1):
        found = re.match(r"\s*ipset\s+(?:-exist\s+)?add\s+(?:-exist\s+)?[\w-]+\s+(\S+)", line)
        if found and "$" not in found[1]:
            place = f"line {number}"
            draft.allow_network(network(found[1].strip("\"'"), place), (), ports, f"from {place}")
    if "api.github.com/meta" in text:
        _github(draft, text, ports, meta)


def _github(draft: Draft, text: str, ports: Reach, meta: str) -> None:
    """GitHub's published networks, of the kinds that the script takes; IPv4, as it checks them."""
    place = f"line {text.count(chr(10), 0, text.index('api.github.com/meta')) + 1}"
    if not meta:
        draft.gap(place, "left out: GitHub's ranges, fetched when the script runs; save the answer for --github-meta")
        return
    keys = _META_KEYS.search(text)
    wanted = re.findall(r"\w+", keys[1]) if keys else ["web", "api", "git"]
    try:
        members = read(meta).members("GitHub's meta document")
        for key in wanted:
            for item in members.get(key, Node([])).items("networks"):
                found = network(item.text("a network"), item.path)
                if ":" not in found.text:
                    draft.allow_network(found, (), ports, f"GitHub's {key} ranges, {place}")
    except PolicyError as error:
        raise PolicyError(f"--github-meta {error.path}", error.message) from None


# -- iptables --------------------------------------------------------------------------------------------------------
_OURS = re.compile(r"(?:sudo\s+)?(ip6?)tables\b.*\s(-A|-I|--append|--insert)\s+OUTPUT\b")
_SHORT = {"--protocol": "-p", "--destination": "-d", "--jump": "-j", "--dports": "--dport", "--ctstate": "--state"}
_READ = ("-p", "-d", "-j", "-o", "-m", "--dport", "--state", "--set", "--reject-with", "--comment")


def _lines(draft: Draft, text: str) -> list[Line]:
    """The rules for OUTPUT up to the one that refuses the rest. Their order counts only as denials go in front."""
    found: list[Line] = []
    for number, raw in enumerate(text.split("\n"), 1):
        place = f"line {number}"
        match = _OURS.match(raw.strip())
        if match is None:
            continue
        if match[1] == "ip6":
            draft.gap(place, "left out: a rule of ip6tables")
            continue
        rule = _line(draft, raw.strip(), place)
        if rule is None:
            continue
        if not (rule.accepts or rule.protocol or rule.destination or rule.set):
            break
        found.append(rule)
    return found


def _line(draft: Draft, line: str, place: str) -> Line | None:
    """One rule, None for one that opens and closes nothing here."""
    given = _given(line, place)
    verdict = given.get("-j", "")
    if verdict not in ("ACCEPT", "DROP", "REJECT"):
        draft.note(place, f"{show(verdict)} neither accepts nor refuses")
        return None
    accepts, states = verdict == "ACCEPT", given.get("--state", "")
    if given.get("-o") == "lo" or (accepts and states and all(one in _STATES for one in states.split(","))):
        return None
    protocol, ports, destination = given.get("-p", ""), given.get("--dport", ""), given.get("-d", "")
    members = given.get("--set", "")
    known = (
        given.keys() <= set(_READ)
        and "-o" not in given
        and states in ("", "NEW")
        and "$" not in destination + ports
        and protocol in ("", "tcp", "udp")
        and (not members or members.endswith(" dst"))
        and (accepts or not members)
    )
    if not known:
        words = f"{show(line)} is not known here, or only when the script runs"
        if accepts:
            draft.gap(place, f"left out: {words}")
        else:
            draft.undeniable(place, words)
        return None
    return Line(accepts, protocol, _ranges(ports, place), destination, bool(members), place)


def _given(line: str, place: str) -> dict[str, str]:
    """The options behind OUTPUT, each with its value."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise PolicyError(place, f"not a command: {error}") from None
    words = [word for word in words[words.index("OUTPUT") + 1 :] if word not in ("2>/dev/null", "||", "true")]
    given: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word == "--match-set" and len(words) > 1:
            given["--set"] = f"{words.pop(0)} {words.pop(0)}"
        elif word.startswith("-") and words:
            given[_SHORT.get(word, word)] = words.pop(0)
        else:
            given[word] = ""  # `!`, a position: not among what is read
    return given


def _ranges(text: str, place: str) -> tuple[tuple[int, int], ...]:
    found = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"(?a)([0-9]{1,5})(?::([0-9]{1,5}))?", part)
        if not match or not 1 <= int(match[1]) <= int(match[2] or match[1]) <= 65535:
            raise PolicyError(place, f"{show(part)}: no port")
        found.append((int(match[1]), int(match[2] or match[1])))
    return tuple(found)
