"""Coverage-guided fuzzing of everything that reads what a stranger wrote. `docs/fuzzing.md` says how.

A target is a module in `fuzz/targets`:

    check(data)    reads the input and holds what came of it against something else; any exception is a finding
    seeds()        inputs to begin with, small, of every kind that the parser knows
    LONGEST        octets of an input
    WORDS          what the format's words are, for the mutator
"""

from __future__ import annotations

TARGETS = {
    "dns_query": 10,
    "dns_answer": 10,
    "dns_path": 5,
    "policy_json": 10,
    "policy_yaml": 10,
    "policy_rules": 1,
    "policy_edit": 5,
    "control_http": 3,
    "request_head": 10,
    "response_head": 10,
    "chunked_body": 10,
    "client_hello": 10,
    "plain_requests": 10,
    "proxy_header": 10,
    "refused_packet": 10,
}
"""Every target by the name of its module, and its part of the executions: those that are dear have less."""


def shares(names: list[str], runs: int) -> dict[str, int]:
    """How many of so many executions each of these targets gets."""
    parts = sum(TARGETS[name] for name in names)
    return {name: max(1, runs * TARGETS[name] // parts) for name in names}
