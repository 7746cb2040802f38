"""Coverage-guided fuzzing of everything that reads what a stranger wrote. `docs/fuzzing.md` says how.

A target is a module in `fuzz/targets`:

    check(data)    reads the input and holds what came of it against something else; any exception is a finding
    seeds()        inputs to begin with, small, of every kind that the parser knows
    LONGEST        octets of an input
    WORDS          what the format's words are, for the mutator
"""

from __future__ import annotations

TARGETS = (
    "dns_query",
    "dns_answer",
    "dns_path",
    "policy_json",
    "policy_yaml",
    "policy_edit",
    "control_http",
    "request_head",
    "response_head",
    "chunked_body",
    "client_hello",
    "plain_requests",
    "proxy_header",
    "refused_packet",
)
"""Every target, by the name of its module."""
