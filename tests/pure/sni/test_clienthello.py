"""The ClientHello reader: what it finds, what it refuses, and that it agrees with whoever else reads one."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from egress.sni.clienthello import FIRST_WORD, LONGEST, Hello, Reader, asks_again
from egress.sni.names import Refused, canonical
from tests.pure.sni.hellos import body, handshake, hello, of_python, record, server_name, vector

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAME = "api.example.com"
LABEL = st.from_regex(r"[a-z0-9_-]{1,20}", fullmatch=True)
NAMES = st.lists(LABEL, min_size=1, max_size=5).map(".".join).filter(lambda text: not text.rpartition(".")[2].isdigit())


def read(data: bytes, sizes: Sequence[int] = ()) -> Hello | None:
    """In segments of these sizes, the rest in one."""
    reader = Reader()
    for size in sizes:
        reader.feed(data[:size])
        data = data[size:]
    return reader.feed(data)


def refusal(data: bytes) -> str:
    with pytest.raises(Refused) as caught:
        read(data)
    return str(caught.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate in one file."""
    path = tmp_path_factory.mktemp("certificate") / "pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=test", "-keyout", "-"]  # fmt: skip
    path.write_bytes(subprocess.run(argv, capture_output=True, check=True).stdout)
    return path


# -- what others send ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("most", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("alpn", [(), ("h2", "http/1.1")])
def test_what_pythons_ssl_sends(most: ssl.TLSVersion, alpn: tuple[str, ...]) -> None:
    assert read(of_python(NAME, most=most, alpn=alpn)) == Hello(NAME, encrypted=False, early=False)
    assert refusal(of_python(None, most=most, alpn=alpn)) == "no server name (SNI)"


@given(st.data())
def test_what_pythons_ssl_sends_in_any_segments(data: st.DataObject) -> None:
    sent = of_python(NAME)
    sizes = data.draw(st.lists(st.integers(1, len(sent)), max_size=20))
    assert read(sent, sizes) == Hello(NAME, encrypted=False, early=False)


def program(argv: list[str]) -> bytes:
    """The first flight of a program that connects to us."""
    if shutil.which(argv[0]) is None:
        pytest.skip(f"no {argv[0]}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        port = server.getsockname()[1]
        argv = [part.replace("PORT", str(port)) for part in argv]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client, _ = server.accept()
            with client:
                client.settimeout(10)
                data = client.recv(65536)
                while len(data) < 5 + int.from_bytes(data[3:5], "big"):
                    data += client.recv(65536)
        finally:
            process.kill()
            process.communicate()
    return data


@pytest.mark.parametrize("more", [[], ["-tls1_2"], ["-tls1_3"], ["-alpn", "h2"], ["-status"], ["-nocommands"]])
def test_what_openssl_sends(more: list[str]) -> None:
    argv = ["openssl", "s_client", "-connect", "127.0.0.1:PORT"]
    assert read(program([*argv, "-servername", NAME, *more])) == Hello(NAME, encrypted=False, early=False)
    assert refusal(program([*argv, "-noservername", *more])) == "no server name (SNI)"


@pytest.mark.parametrize("more", [[], ["--tlsv1.2"], ["--http1.1"], ["--tls-max", "1.2"]])
def test_what_curl_sends(more: list[str]) -> None:
    argv = ["curl", "-sk", "--resolve", f"{NAME}:PORT:127.0.0.1", *more, f"https://{NAME}:PORT/"]
    assert read(program(argv)) == Hello(NAME, encrypted=False, early=False)


def test_an_address_has_no_server_name_with_curl() -> None:
    assert refusal(program(["curl", "-sk", "https://127.0.0.1:PORT/"])) == "no server name (SNI)"


@given(NAMES)
def test_a_server_reads_the_same_name(certificate: Path, name: str) -> None:
    """The differential: what OpenSSL's server takes for the name is what was read, from octets that we have built."""
    assume(len(name) <= 253)
    seen: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.sni_callback = lambda _, name, __: seen.append(name)
    extensions = ((10, vector(2, b"\0\x17")), (13, vector(2, b"\4\3")))
    sent = hello(name.encode(), extensions=extensions, suites=b"\xc0\x2b")
    come, gone = ssl.MemoryBIO(), ssl.MemoryBIO()
    come.write(sent)
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(come, gone, server_side=True).do_handshake()
    found = read(sent)
    assert found is not None
    assert seen == [found.name] == [name]


# -- in pieces -------------------------------------------------------------------------------------------------------
@given(st.data())
def test_over_records_and_segments(data: st.DataObject) -> None:
    message = handshake(body())
    stream = b""
    while message:
        size = data.draw(st.integers(1, len(message)))
        stream += record(message[:size])
        message = message[size:]
    sizes = data.draw(st.lists(st.integers(1, len(stream)), max_size=10))
    assert read(stream, sizes) == Hello(NAME, encrypted=False, early=False)


@given(st.data())
def test_nothing_is_decided_before_the_end(data: st.DataObject) -> None:
    sent = hello()
    assert read(sent[: data.draw(st.integers(0, len(sent) - 1))]) is None


def test_the_end_and_what_follows() -> None:
    early = hello(extensions=((42, b""),))
    for rest in (b"", record(b"\1", 20), record(b"data", 23), record(b"data", 23)[:3]):
        reader = Reader()
        assert reader.feed(early + rest) == Hello(NAME, encrypted=False, early=True)
        assert reader.raw[reader.end :] == rest


@pytest.mark.parametrize("rest", [b"x", b"GET / HTTP/1.1\r\n\r\n", hello(b"other.example.com"), record(b"\1", 20),
                                  record(b"x", 23), record(b"\2\x28", 21)])  # fmt: skip
def test_what_follows_is_refused_where_nothing_may(rest: bytes) -> None:
    assert refusal(hello() + rest) == "something follows the ClientHello"


def test_what_follows_in_the_same_record_is_refused() -> None:
    for rest in (b"\0", handshake(body(b"other.example.com"))):
        assert "something follows the ClientHello" in refusal(record(handshake(body()) + rest))
    assert refusal(hello(suites=b"\1")) == "a ClientHello that is not well-formed"
    assert refusal(hello(tail=b"\0\0")) == "something follows the ClientHello's extensions"


def test_bounds() -> None:
    assert "too long" in refusal(record(bytes([1]) + LONGEST.to_bytes(3, "big")))
    slow = bytes([1, 0, 63, 0]) + bytes(LONGEST)
    assert "too long" in refusal(b"".join(record(slow[at : at + 1]) for at in range(LONGEST)))
    padding = LONGEST - len(handshake(body())) - 4
    message = handshake(body(extensions=((21, b"\0" * padding),)))
    assert len(message) == LONGEST
    assert read(record(message[:9000]) + record(message[9000:])) is not None


# -- what is not one -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n", b"SSH-2.0-x\r\n", b"\x80\x2e\x01\x03\x01", b"\0", b"\x15\3\1", b"\x16\x02\0",
     b"\x16\x03\x05", b"PRI * HTTP/2.0\r\n\r\n", b"\x17\3\3\0\1x"],
)  # fmt: skip
def test_what_is_not_tls_is_refused_at_once(data: bytes) -> None:
    assert refusal(data) == "not TLS"


@pytest.mark.parametrize("kind", [0, 2, 11, 16, 20])
def test_another_handshake_message(kind: int) -> None:
    assert refusal(record(handshake(body(), kind))) == "not a ClientHello"
    assert refusal(record(handshake(body(), kind))[:6]) == "not a ClientHello"


def test_records_of_no_valid_length() -> None:
    assert "valid length" in refusal(record(b""))
    assert "valid length" in refusal(b"\x16\3\1\x40\1")


def test_another_record_in_between() -> None:
    message = handshake(body())
    for kind in (20, 21, 23):
        assert refusal(record(message[:10]) + record(b"\1", kind) + record(message[10:])) == "not a ClientHello"


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (server_name(b"a.example.com", b"b.example.com"), "several server names (SNI)"),
        (server_name(b"a.example.com", kind=1), "well-formed"),
        (server_name(), "well-formed"),
        (b"", "cut short"),
        (server_name(b"a.example.com") + b"\0", "well-formed"),
        (vector(2, b"\0\0\x0aa.example"), "cut short"),
        (server_name(b""), "empty"),
        (server_name(b"192.0.2.1"), "an address"),
        (server_name(b"0x7f.1"), "an address"),
        (server_name(b"2130706433"), "an address"),
        (server_name(b"2001:db8::1"), "an address"),
        (server_name(b"[2001:db8::1]"), "an address"),
        (server_name(b"api.example.com:443"), "an address"),
        (server_name(b"api.example.com."), "no host name"),
        (server_name(b"*.example.com"), "no host name"),
        (server_name(b"api.example.com\0.evil.example"), "no host name"),
        (server_name(b"api .example.com"), "no host name"),
        (server_name("ä.example.com".encode()), "no host name"),
        (server_name(b"a" * 64 + b".example.com"), "no host name"),
        (server_name(b".".join([b"a" * 60] * 5)), "no host name"),
    ],
)
def test_odd_server_names(block: bytes, reason: str) -> None:
    assert reason in refusal(hello(None, extensions=((0, block),)))


def test_a_server_name_twice_or_missing() -> None:
    assert refusal(hello(extensions=((0, server_name(b"b.example.com")),))) == "an extension twice in the ClientHello"
    assert refusal(hello(None)) == "no server name (SNI)"
    assert refusal(hello(None, extensions=((16, b""),))) == "no server name (SNI)"


def test_case_does_not_matter() -> None:
    assert read(hello(b"API.Example.COM")) == Hello(NAME, encrypted=False, early=False)


@pytest.mark.parametrize("kind", [0xFE0D, 0xFE08, 0xFE0A, 0xFFCE, 0xFF02])
def test_an_encrypted_hello_is_seen_wherever_it_stands(kind: int) -> None:
    for extensions in (((kind, b"x"), (16, b"")), ((16, b""), (kind, b""))):
        assert read(hello(extensions=extensions)) == Hello(NAME, encrypted=True, early=False)


def test_grease_is_none() -> None:
    """RFC 8701: values that mean nothing."""
    greases = tuple((value << 8 | value, b"") for value in range(0x0A, 0x100, 0x10))
    assert read(hello(extensions=greases)) == Hello(NAME, encrypted=False, early=False)


# -- whatever comes ----------------------------------------------------------------------------------------------------
@given(st.binary(max_size=400), st.lists(st.integers(1, 40), max_size=20))
def test_anything_at_all(data: bytes, sizes: list[int]) -> None:
    reason = ""
    try:
        read(b"\x16\3\1" + data, sizes)
    except Refused as refused:
        reason = str(refused)
    assert reason.isprintable()


@given(st.data())
def test_a_hello_with_octets_changed_says_the_same_in_any_segments(data: st.DataObject) -> None:
    """Whatever it says, it says whichever way it is cut."""
    sent = bytearray(hello(extensions=((16, vector(2, vector(1, b"h2"))), (42, b""))))
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))

    def outcome(sizes: Sequence[int]) -> Hello | str | None:
        try:
            return read(bytes(sent), sizes)
        except Refused as refused:
            return str(refused)

    whole = outcome(())
    found = outcome(data.draw(st.lists(st.integers(1, 60), max_size=8)))
    assert found == whole or (isinstance(found, str) and isinstance(whole, str))


@given(st.binary(max_size=300))
def test_names_are_what_dns_takes(raw: bytes) -> None:
    try:
        name = canonical(raw, "name")
    except Refused:
        return
    assert name == name.lower()
    assert name.encode() == raw.lower()
    assert 0 < len(name) <= 253
    assert all(0 < len(label) < 64 for label in name.split("."))


# -- the second one ----------------------------------------------------------------------------------------------------
RETRY = record(handshake(b"\3\3" + bytes.fromhex(
    "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c") + b"\0\x13\1\0\0\0", 2))  # fmt: skip


def test_a_retry_request_is_seen() -> None:
    assert asks_again(RETRY) is True
    assert asks_again(record(handshake(b"\3\3" + b"r" * 32 + b"\0\x13\1\0\0\0", 2))) is False
    assert asks_again(b"\x15\3\3\0\2\2\x28") is False
    for length in range(1, FIRST_WORD):
        assert asks_again(RETRY[:length]) is None
    assert asks_again(b"SSH-2.0-x") is False


def test_a_server_that_wants_another_hello_is_understood(certificate: Path) -> None:
    """The differential: OpenSSL's server asks for another group, the client answers, and both are read."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    server.set_ecdh_curve("secp384r1")
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(down, up, server_hostname=NAME)
    with pytest.raises(ssl.SSLWantReadError):
        one.do_handshake()
    first = up.read()
    come, gone = ssl.MemoryBIO(), ssl.MemoryBIO()
    come.write(first)
    other = server.wrap_bio(come, gone, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        other.do_handshake()
    word = gone.read()
    assert asks_again(word) is True
    down.write(word)
    with pytest.raises(ssl.SSLWantReadError):
        one.do_handshake()
    second = up.read()
    found = read(first)
    assert found is not None
    again = Reader(found)
    assert again.feed(second) == found
    assert bytes(again.raw) == second


def test_the_second_hello_may_come_behind_others() -> None:
    first = Hello(NAME, encrypted=False, early=True)
    assert Reader(first).feed(record(b"\1", 20) + record(b"x" * 16600, 23) + hello()) is not None
    with pytest.raises(Refused):
        Reader(first._replace(early=False)).feed(record(b"x", 23) + hello())
    with pytest.raises(Refused):
        Reader(first).feed(record(b"\2\x28", 21))
