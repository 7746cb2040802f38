"""Threats E7 to E9 and the DNS half of E11: what an answer may teach, and what a question may carry."""

from __future__ import annotations

import ipaddress
import itertools
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lab import rdata
from lab.client import NoReply
from lab.reply import Reply, build_query
from tests.blackbox.place import REJECTED, Place, allow, soon

if TYPE_CHECKING:
    from collections.abc import Sequence

NEVER = [
    "127.0.0.1", "127.8.9.10", "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.1.1", "224.0.0.1", "239.1.2.3",
    "240.0.0.1", "255.255.255.255", "100.100.100.200", "168.63.129.16", "192.0.0.192",
    "::1", "::", "fe80::1", "ff02::1", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "2002:a9fe:a9fe::1",
    "2002:7f00:1::", "fd00:c1::a9fe:a9fe", "fd00:a9fe:a9fe::1", "64:ff9b:1::a9fe:a9fe", "::a9fe:a9fe",
    "::ffff:0:a9fe:a9fe", "::7f00:1", "2606:4700::200:5efe:a9fe:a9fe", "2606:4700::5efe:7f00:1",
    "2001:0:4142:4344::5601:5601",
]  # fmt: skip
UNDER_DENY = [
    "10.0.0.1", "172.16.0.1", "172.31.255.254", "192.168.1.1", "100.64.0.1", "100.127.255.255", "198.18.0.1",
    "198.19.255.255", "192.0.0.8", "fc00::1", "fd12:3456::1", "fec0::1", "2001:2::1", "100::1", "64:ff9b:1::1",
    "2001:0:1234::1", "::c000:201",
    "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1", "64:ff9b::c0a8:101", "2002:c0a8:101::",
    "192.88.99.1", "2001:5::1", "2001:10::1", "100:0:0:1::1", "5f00::1", "::ffff:0:808:808", "2606:4700::5efe:a00:1",
]  # fmt: skip
ORDINARY = [
    "192.0.2.1", "198.51.100.7", "203.0.113.7", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1",
    "198.17.255.255", "198.20.0.0", "192.0.1.0", "11.0.0.0", "9.255.255.255", "223.255.255.255", "1.0.0.0",
    "169.253.255.255", "169.255.0.0", "2001:db8::1", "2001:4860::1", "64:ff9b::c000:201", "2002:c000:201::1",
    "2001:3::1", "2003::1", "101::1", "2001:200::1", "2001:20::1", "5f01::1", "2606:4700::5efe:808:808",
]  # fmt: skip


def qtype(address: str) -> str:
    return "AAAA" if ":" in address else "A"


def same(found: Sequence[str], wanted: Sequence[str]) -> bool:
    return sorted(map(ipaddress.ip_address, found), key=str) == sorted(map(ipaddress.ip_address, wanted), key=str)


def look_up(place: Place, addresses: Sequence[str], name: str = "") -> tuple[str, Reply]:
    owner = name or place.name("private.example.com")
    place.lab.dns.a(owner, *addresses)
    return owner, place.ask(owner, qtype(addresses[0]))


@pytest.fixture(scope="module")
def default_deny(place: Place) -> Place:
    place.allow("*.private.example.com")
    return place


@pytest.mark.parametrize("address", NEVER + UNDER_DENY)
def test_e7_special_addresses_are_stripped_under_default_deny(default_deny: Place, address: str) -> None:
    default_deny.allow("*.private.example.com")
    _, reply = look_up(default_deny, [address])
    assert (reply.rcode, reply.addresses) == ("NOERROR", []), "NODATA, not the address"
    assert reply.negative_ttl is not None
    assert not any(address in members for members in default_deny.sets().values())


@pytest.mark.parametrize("address", ORDINARY)
def test_e7_ordinary_addresses_pass(default_deny: Place, address: str) -> None:
    default_deny.allow("*.private.example.com")
    _, reply = look_up(default_deny, [address])
    assert reply.addresses == [address]
    assert default_deny.lease(address) is not None


def test_e7_what_differs_under_default_allow(place: Place) -> None:
    place.policy({"defaultAction": "allow", "egress": []})
    for address in NEVER:
        assert look_up(place, [address])[1].addresses == [], address
    for address in UNDER_DENY:
        if address.startswith("::ffff:"):
            continue  # below
        assert same(look_up(place, [address])[1].addresses, [address]), address
    assert place.lab.connect("10.99.0.10", 80) == "connected"
    assert place.lab.connect("169.254.169.254", 80) in REJECTED
    assert place.lab.connect("fd00:ec2::254", 80) in REJECTED
    for broad in ("0.0.0.0/0", "::/0"):
        place.policy({"defaultAction": "allow", "egress": [{"action": "allow", "target": broad}]})
        assert place.lab.connect("169.254.169.254", 80) in REJECTED
        assert place.lab.connect("fd00:ec2::254", 80) in REJECTED


def test_e7_only_the_special_ones_of_an_answer_are_removed(default_deny: Place) -> None:
    default_deny.allow("*.private.example.com")
    good, better = default_deny.host(), default_deny.host()
    _, reply = look_up(default_deny, ["10.1.2.3", good, "127.0.0.1", better, "169.254.169.254"])
    assert sorted(reply.addresses) == sorted([good, better])
    good6 = default_deny.host(6)
    _, reply = look_up(default_deny, ["fd12::1", good6, "::1", "::ffff:10.0.0.1"])
    assert reply.addresses == [good6]


def test_e7_an_ip_rule_opens_a_special_address_on_its_own_ports(place: Place) -> None:
    private, metadata = "10.99.0.10", "169.254.169.254"
    name = place.name()
    rules = [
        {"action": "allow", "target": name},
        {"action": "allow", "target": private, "ports": [80]},
        {"action": "allow", "target": metadata, "ports": [80], "protocol": "tcp"},
    ]
    place.policy({"defaultAction": "deny", "egress": rules})
    place.lab.dns.a(name, private, metadata)
    assert sorted(place.ask(name).addresses) == [private, metadata]
    assert place.lease(private) is None  # a name rule never widens it
    assert place.lab.connect(private, 80) == "connected"
    assert place.lab.connect(private, 443) in REJECTED
    assert place.lab.connect(metadata, 80) == "connected"
    assert place.lab.connect(metadata, 443) in REJECTED


def test_e8_a_cname_to_a_denied_name(place: Place) -> None:
    first, middle, last, target = place.name(), place.name("cdn.example.net"), place.name(), place.host()
    place.policy(
        {
            "defaultAction": "deny",
            "egress": [{"action": "deny", "target": "*.cdn.example.net"}, {"action": "allow", "target": first}],
        }
    )
    place.lab.dns.chain([first, middle, last], target)
    reply = place.ask(first)
    assert reply.rcode == "NXDOMAIN"
    assert not reply.answers
    assert reply.ede is not None
    assert reply.ede[0] == 15
    assert middle in reply.ede[1], "the EDE names the link"
    assert place.lab.connect(target, 80) in REJECTED
    place.allow(first)  # the control: links need no rule of their own
    reply = place.ask(first)
    assert reply.addresses == [target]
    assert place.lab.connect(target, 80) == "connected"


@pytest.mark.parametrize("star", ["deny", "allow"])
def test_e8_the_star_does_not_count_for_links(place: Place, star: str) -> None:
    first, last, target = place.name(), place.name("elsewhere.example.net"), place.host()
    rules = [{"action": "allow", "target": first}, {"action": star, "target": "*"}]
    if star == "allow":
        rules.insert(0, {"action": "deny", "target": "*.elsewhere.example.net"})
    place.policy({"defaultAction": "deny", "egress": rules})
    place.lab.dns.chain([first, last], target)
    assert place.ask(first).addresses == ([target] if star == "deny" else [])


def test_e8_a_link_denied_on_some_ports(place: Place) -> None:
    first, last, target = place.name(), place.name("cdn.example.net"), place.host()
    place.policy(
        {
            "defaultAction": "deny",
            "egress": [
                {"action": "deny", "target": last, "ports": [25], "protocol": "tcp"},
                {"action": "allow", "target": first},
            ],
        }
    )
    place.lab.dns.chain([first, last], target)
    assert place.ask(first).addresses == [target]
    assert place.lab.connect(target, 25) in REJECTED
    assert place.lab.connect(target, 80) == "connected"


def test_e8_records_off_the_chain_teach_nothing(place: Place) -> None:
    name, true, planted, beside = place.name(), place.host(), place.host(), place.host()
    place.allow(name)
    stranger = place.name("example.net")
    place.lab.dns.a(name, true)
    place.lab.dns.behave(
        name,
        extra=[
            (stranger, "A", 60, rdata.address(planted)[1]),
            (name, "TXT", 60, rdata.txt("x")),
            (name, "AAAA", 60, rdata.address("2001:db8::bad")[1]),
        ],
    )
    assert place.ask(name).answers == [(name, "A", 60, true)]
    assert place.lab.connect(planted, 80) in REJECTED
    alias, target = place.name(), place.name()
    place.allow(alias)
    cname = rdata.encode_name(target)
    place.lab.dns.behave(
        alias,
        only=[
            (alias, "CNAME", 60, cname),
            (alias, "A", 60, rdata.address(beside)[1]),  # beside a CNAME: teaches nothing
            (target, "A", 60, rdata.address(true)[1]),
        ],
    )
    assert place.ask(alias).addresses == [true]
    assert place.lab.connect(beside, 80) in REJECTED


def test_e8_the_order_in_the_answer_does_not_matter_and_a_doubled_cname_is_one(place: Place) -> None:
    alias, target, address = place.name(), place.name(), place.host()
    place.allow(alias)
    cname = rdata.encode_name(target)
    records = [
        (target, "A", 60, rdata.address(address)[1]),
        (alias, "CNAME", 60, cname),
        (alias, "CNAME", 60, rdata.encode_name(target.upper())),
    ]
    place.lab.dns.behave(alias, only=records)
    assert place.ask(alias).addresses == [address]


def chained(names: Sequence[str]) -> list[tuple[str, str, int, bytes]]:
    return [(owner, "CNAME", 60, rdata.encode_name(target)) for owner, target in itertools.pairwise(names)]


def test_e8_two_cnames_loops_and_long_chains_are_servfail(place: Place) -> None:
    place.allow("*.loop.example.com")
    names = [place.name("loop.example.com") for _ in range(18)]
    address = rdata.address(place.host())[1]

    def rcode(records: list[tuple[str, str, int, bytes]]) -> str:
        owner = place.name("loop.example.com")
        place.lab.dns.behave(owner, only=[(owner, "CNAME", 60, rdata.encode_name(names[0])), *records])
        return place.ask(owner).rcode

    assert rcode([*chained(names[:16]), (names[15], "A", 60, address)]) == "NOERROR"  # 16 links
    assert rcode([*chained(names[:17]), (names[16], "A", 60, address)]) == "SERVFAIL"
    assert rcode([*chained([names[0], names[1], names[0]])]) == "SERVFAIL"
    fork = [*chained([names[0], names[1]]), *chained([names[0], names[2]]), (names[1], "A", 60, address)]
    assert rcode(fork) == "SERVFAIL"
    alone = place.name("loop.example.com")
    place.lab.dns.behave(alone, only=chained([alone, alone]))
    assert place.ask(alone).rcode == "SERVFAIL"


def test_e8_a_dname_counts_by_the_cname_made_from_it(place: Place) -> None:
    name, target, address = place.name("d.example.com"), place.name("e.example.com"), place.host()
    place.allow(name)
    place.lab.dns.behave(
        name,
        only=[
            ("d.example.com", "DNAME", 60, rdata.encode_name("e.example.com")),
            (name, "CNAME", 60, rdata.encode_name(target)),
            (target, "A", 60, rdata.address(address)[1]),
        ],
    )
    assert place.ask(name).addresses == [address]
    without = place.name("d.example.com")
    place.allow(without)
    place.lab.dns.behave(
        without,
        only=[
            ("d.example.com", "DNAME", 60, rdata.encode_name("e.example.com")),
            (place.name("e.example.com"), "A", 60, rdata.address(place.host())[1]),
        ],
    )
    assert place.ask(without).addresses == []


@pytest.mark.parametrize("rcode", ["NXDOMAIN", "SERVFAIL", "REFUSED", "FORMERR"])
def test_e8_an_error_teaches_nothing(place: Place, rcode: str) -> None:
    name, address = place.name(), place.host()
    place.allow(name)
    # The lab leaves records out of most errors, so the answer is made by hand.
    question = rdata.encode_name(name) + struct.pack(">HH", 1, 1)
    record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + rdata.address(address)[1]
    raw = struct.pack(">6H", 0, 0x8180 | rdata.RCODES[rcode], 1, 1, 0, 0) + question + record
    place.lab.dns.behave(name, raw=raw)
    assert place.ask(name).addresses == []
    assert place.lab.connect(address, 80) in REJECTED
    raw = struct.pack(">6H", 0, 0x8180, 1, 1, 0, 0) + question + record
    other = place.name()
    place.allow(other)
    question = rdata.encode_name(other) + struct.pack(">HH", 1, 1)
    place.lab.dns.behave(other, raw=struct.pack(">6H", 0, 0x8180, 1, 1, 0, 0) + question + record)
    assert place.ask(other).addresses == [address]  # the control


@pytest.mark.parametrize("forge", ["id", "port", "source", "case", "question"])
@pytest.mark.parametrize("name", ["forged.example.com"])
def test_e8_forged_answers_are_not_believed(place: Place, forge: str, name: str) -> None:
    owner, true = place.name(name), place.host()
    place.allow(owner)
    place.lab.dns.a(owner, true)
    lie = f"198.51.101.{['id', 'port', 'source', 'case', 'question'].index(forge) + 1}"
    place.lab.dns.behave(owner, forge=forge, forged_address=lie)
    assert place.ask(owner).addresses == [true]
    assert place.lab.connect(lie, 80) in REJECTED
    assert place.lab.connect(true, 80) == "connected"


def test_e8_a_truncated_answer_teaches_nothing_and_is_asked_again_over_tcp(place: Place) -> None:
    owner, true = place.name(), place.host()
    place.allow(owner)
    place.lab.dns.a(owner, true)
    place.lab.dns.behave(owner, truncate_full=True)
    place.lab.dns.forget()
    assert place.ask(owner).addresses == [true]
    asked = [query.transport for query in place.lab.dns.queries(owner)]
    assert list(dict.fromkeys(asked)) == ["udp", "tcp"]  # either twice where the lab's server took its time
    lost, address = place.name(), place.host()
    place.allow(lost)
    place.lab.dns.a(lost, address)
    place.lab.dns.behave(lost, truncate_full=True, close=True)
    assert place.ask(lost, timeout=30).rcode == "SERVFAIL"
    assert place.lab.connect(address, 80) in REJECTED


def test_e8_two_questions_are_formerr(place: Place) -> None:
    place.allow("a.example.com")
    two = struct.pack(">6H", 77, 0x0100, 2, 0, 0, 0) + 2 * (
        rdata.encode_name("a.example.com") + struct.pack(">HH", 1, 1)
    )
    assert Reply(place.lab.client.query_raw(two)).rcode == "FORMERR"


def test_e9_hints_ech_and_dohpath_are_gone(place: Place) -> None:
    name, hinted = place.name(), place.host()
    place.allow(name)
    parameters: dict[str | int, bytes] = {
        "mandatory": struct.pack(">HH", 1, 4),
        "alpn": b"\x02h2",
        "port": struct.pack(">H", 443),
        "ipv4hint": rdata.address(hinted)[1],
        "ech": b"\0\x04abcd",
        "ipv6hint": rdata.address("2001:db8::77")[1],
        "dohpath": b"/q{?dns}",
    }
    for rtype in ("HTTPS", "SVCB"):
        place.lab.dns.add(name, rtype, rdata.svcb(1, "svc.example.com", parameters))
        reply = place.ask(name, rtype)
        assert reply.rcode == "NOERROR"
        data = reply.record.rr[0].rdata
        raw = reply.raw
        for gone in (rdata.address(hinted)[1], b"abcd", rdata.address("2001:db8::77")[1], b"/q{?dns}"):
            assert gone not in raw, data
        assert b"\x02h2" in raw
    assert place.lab.connect(hinted, 80) in REJECTED


@pytest.mark.parametrize(
    "rtype",
    [
        "ANY",
        "AXFR",
        "NULL",
        "TYPE65280",
        "TYPE0",
        "RRSIG",
        "TYPE48",
        "TYPE43",
        "TYPE251",
        "TYPE13",
        "TYPE10",
        "TYPE249",
    ],
)
def test_e9_other_types_are_nodata_and_never_asked(place: Place, rtype: str) -> None:
    name = place.name()
    place.allow(name)
    place.lab.dns.a(name, place.host())
    place.lab.dns.forget()
    for tcp in (False, True):
        reply = place.ask(name, rtype, tcp=tcp)
        assert (reply.rcode, reply.answers) == ("NOERROR", [])
        assert reply.negative_ttl is not None
        assert reply.ede is not None
    assert not place.lab.dns.queries(name)


def test_e9_options_pass_in_neither_direction(place: Place) -> None:
    name, other = place.name(), place.name()
    place.allow(name, other)
    place.lab.dns.a(name, place.host())
    secret = b"exfiltrated-by-option"
    options = struct.pack(">HH", 65001, len(secret)) + secret + struct.pack(">HHHBB4s", 8, 8, 1, 32, 0, b"\1\2\3\4")
    reply = place.ask(name, options=options)
    assert reply.addresses
    assert secret not in reply.raw
    seen = place.lab.dns.queries(name)
    assert seen
    assert all(query.options == b"" and secret not in query.raw for query in seen)
    # Nor back: an answer of the upstream's with options of its own.
    question = rdata.encode_name(other) + struct.pack(">HH", 1, 1)
    record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + rdata.address(place.host())[1]
    opt = b"\0" + struct.pack(">HHIH", 41, 1232, 0, len(options)) + options
    place.lab.dns.behave(other, raw=struct.pack(">6H", 0, 0x8180, 1, 1, 0, 1) + question + record + opt)
    reply = place.ask(other)
    assert reply.addresses
    assert secret not in reply.raw


def test_e9_flags_and_do_are_not_forwarded(place: Place) -> None:
    name = place.name()
    place.allow(name)
    place.lab.dns.a(name, place.host())
    message = bytearray(build_query(name, "A", 99, 4096, flags=0x0130))  # AD, CD
    message[-4:-2] = b"\x80\x00"  # DO
    assert Reply(place.lab.client.query_raw(bytes(message))).addresses
    seen = place.lab.dns.queries(name)
    assert {query.flags for query in seen} == {0x0100}
    assert not any(query.raw[-4:-2] == b"\x80\x00" for query in seen)


def test_e11_the_address_is_open_before_the_answer_leaves(place: Place) -> None:
    place.lab.dns.generate("race.example.com", "198.51.102.0/24")
    place.allow("*.race.example.com")
    for number in range(60):
        (address,) = place.ask(f"r{number}.race.example.com").addresses
        assert place.lab.connect(address, 80) == "connected", number


def test_e11_an_answer_decided_under_an_old_policy_teaches_nothing(place: Place) -> None:
    name, address = place.name(), place.host()
    place.allow(name)
    place.lab.dns.a(name, address)
    place.lab.dns.behave(name, held=True)
    heard: list[str] = []

    def ask() -> None:
        try:
            reply = place.ask(name)
            heard.append(f"{reply.rcode} {reply.addresses}")
        except NoReply as error:
            heard.append(error.outcome)

    thread = threading.Thread(target=ask)
    thread.start()
    assert place.lab.dns.wait_for(name)
    place.policy({"defaultAction": "deny", "egress": []})
    place.lab.dns.normal(name)
    thread.join()
    assert heard == ["NXDOMAIN []"]
    assert place.lease(address) is None
    assert place.lab.connect(address, 80) in REJECTED


def test_e11_a_change_while_hundreds_of_look_ups_are_in_flight(place: Place) -> None:
    """Whatever was answered with an address under the old policy is closed when the change has been answered."""
    place.lab.dns.generate("flight.example.com", "198.51.103.0/24")
    place.lab.dns.behave("*", delay=0.1)
    for number in range(20):  # on the way for certain when the change comes
        place.lab.dns.behave(f"f{number}.flight.example.com", held=True)
    place.allow("*.flight.example.com")
    sockets = []
    for number in range(200):
        sock = place.lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.sendto(build_query(f"f{number}.flight.example.com", "A", number), ("203.0.113.53", 53))
        sockets.append(sock)
    time.sleep(0.08)
    place.policy({"defaultAction": "deny", "egress": []})
    for name in ("*", *(f"f{number}.flight.example.com" for number in range(20))):
        place.lab.dns.normal(name)
    assert not any(place.sets().values())
    late = 0
    for sock in sockets:
        sock.settimeout(10)
        reply = Reply(sock.recv(2048))
        late += bool(reply.addresses)
        sock.close()
    assert late <= 180
    assert not any(place.sets().values())
    place.policy(allow("*.flight.example.com"))
    assert soon(lambda: place.ask("f100.flight.example.com").addresses)
