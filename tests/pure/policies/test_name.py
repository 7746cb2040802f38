"""Targets: what is taken, in which form, and what each refusal tells its reader."""

from __future__ import annotations

import subprocess
import sys

import hypothesis.strategies as st
import pytest
from hypothesis import given

from policies.name import TargetError, parse_host, parse_target, show

LONGEST = "a." * 126 + "a"


@pytest.mark.parametrize(
    ("text", "canonical", "kind"),
    [
        ("api.example.com", "api.example.com", "name"),
        ("API.Example.COM", "api.example.com", "name"),
        ("api.example.com.", "api.example.com", "name"),
        ("  api.example.com ", "api.example.com", "name"),
        ("localhost", "localhost", "name"),
        ("_dmarc.example.com", "_dmarc.example.com", "name"),
        ("a_.example.com_", "a_.example.com_", "name"),
        ("r3---sn.example.com", "r3---sn.example.com", "name"),
        ("3com.example", "3com.example", "name"),
        ("example.3com", "example.3com", "name"),
        ("example.0xyz", "example.0xyz", "name"),
        ("1.2.3.4.example", "1.2.3.4.example", "name"),
        ("*.com", "*.com", "suffix"),
        ("*.Example.com.", "*.example.com", "suffix"),
        ("*", "*", "any"),
        (LONGEST, LONGEST, "name"),
        ("*." + LONGEST[2:], "*." + LONGEST[2:], "suffix"),
        ("a" * 63 + ".example", "a" * 63 + ".example", "name"),
        ("b\u00fccher.example", "xn--bcher-kva.example", "name"),
        ("B\u00dcCHER.example", "xn--bcher-kva.example", "name"),
        ("bu\u0308cher.example", "xn--bcher-kva.example", "name"),
        ("*.b\u00fccher.example", "*.xn--bcher-kva.example", "suffix"),
        ("stra\u00dfe.example", "xn--strae-oqa.example", "name"),
        ("\u03c2.example", "xn--3xa.example", "name"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example", "name"),
        ("xn--not-punycode.example", "xn--not-punycode.example", "name"),
        ("192.0.2.1", "192.0.2.1", "address"),
        (" 192.0.2.1/32 ", "192.0.2.1", "address"),
        ("10.0.0.5/8", "10.0.0.0/8", "address"),
        ("2001:DB8:0:0::1", "2001:db8::1", "address"),
        ("::ffff:192.0.2.1", "192.0.2.1", "address"),
        ("0.0.0.0/0", "0.0.0.0/0", "address"),
        ("::/0", "::/0", "address"),
    ],
)
def test_taken(text: str, canonical: str, kind: str) -> None:
    target = parse_target(text)
    assert (target.text, target.kind) == (canonical, kind)
    assert (target.network is not None) == (kind == "address")
    assert parse_target(target.text) == target


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("   ", "empty"),
        (".", "empty label"),
        ("*.", 'empty label; write a name such as "*.example.com"'),
        ("*..", "empty label"),
        ("a..example", "empty label"),
        (".example.com", "empty label"),
        ("example.com..", "empty label"),
        ("-a.example", "hyphen"),
        ("a-.example", "hyphen"),
        ("example.com-", "hyphen"),
        ("-", "hyphen"),
        ("xn--.example", "hyphen"),
        ("a" * 64 + ".example", "at most 63"),
        (LONGEST + ".a", "at most 253"),
        ("*." + LONGEST, "at most 253"),
        ("x" * 5000, "at most 253"),
        ("a.*.example", "whole first label"),
        ("example.*", "whole first label"),
        ("a*.example", "whole first label"),
        ("*a.example", "whole first label"),
        ("**.example", "whole first label"),
        ("*.*.example", "whole first label"),
        ("**", "whole first label"),
        ("https://api.example.com/v1?x=1", 'URL; write "api.example.com"'),
        ("https://me:pw@api.example.com:8443/v1", 'URL; write "api.example.com"'),
        ("http://[2001:db8::1]:80/", 'URL; write "2001:db8::1"'),
        ("http://", "URL; write only its host"),
        ("api.example.com:443", 'write "api.example.com" and "ports": [443]'),
        ("*.example.com:443", 'write "*.example.com" and "ports": [443]'),
        ("*:443", 'write "*" and "ports": [443]'),
        ("192.0.2.1:443", 'write "192.0.2.1" and "ports": [443]'),
        ("[2001:db8::1]:443", 'write "2001:db8::1" and "ports": [443]'),
        ("[2001:db8::1]", 'write "2001:db8::1"'),
        ("api.example.com:", 'port has no place here; write "api.example.com"'),
        ("10.0.0.0/8:443", 'write "10.0.0.0/8" and "ports": [443]'),
        ("api.example.com/v1", 'path; write "api.example.com"'),
        ("api.example.com/24", 'path; write "api.example.com"'),
        ("api.example.com:443/v1", 'path; write "api.example.com"'),
        ("/", "path"),
        ("0x7f.1", "last label is a number"),
        ("0x7f000001", "last label is a number"),
        ("0xff", "last label is a number"),
        ("example.0xff", "last label is a number"),
        ("example.0x", "last label is a number"),
        ("2130706433", "last label is a number"),
        ("127.1", "last label is a number"),
        ("1.2.3.4.", "last label is a number"),
        ("1.2.3.4.5", "last label is a number"),
        ("*.1", "last label is a number"),
        ("*.0XFF", "last label is a number"),
        ("010.0.0.1", 'write "10.0.0.1"'),
        ("1.2.3.256", "0 to 255"),
        ("10.0.0.5/0", "host bits"),
        ("::ffff:10.0.0.0/104", '"10.0.0.0/8"'),
        ("fe80::1%eth0", "zone ids"),
        ("fe80::%eth0/64", "zone ids"),
        ("example%2ecom", "no place in a name"),
        ("a@example.com", "'@'"),
        ("a?b", "'?'"),
        ("a,b", "','"),
        ("a\\b", "no place in a name"),
        ("a'b", "no place in a name"),
        ("a b.example", "white space (U+0020)"),
        ("\tapi.example.com", "white space (U+0009)"),
        ("api.example.com\n", "white space (U+000A)"),
        ("\u00a0api.example.com", "white space (U+00A0)"),
        ("a\u3000b", "white space (U+3000)"),
        ("a\u200bb.example", "invisible character (U+200B)"),
        ("a\u00adb.example", "invisible character (U+00AD)"),
        ("\ufeffa.example", "invisible character (U+FEFF)"),
        ("\u202eexample", "invisible character (U+202E)"),
        ("a\x00.example", "invisible character (U+0000)"),
        ("a\ud800b", "invisible character (U+D800)"),
        ("a\u3002example", "write '.'"),
        ("a\uff0eexample", "write '.'"),
        ("a\uff61example", "write '.'"),
        ("\uff45xample.com", "(U+FF45) isn't allowed"),
        ("\U0001f600.example", "(U+1F600) isn't allowed"),
        ("\u212aelvin.example", "stands for an ASCII letter"),
        ("\u0130.example", "isn't allowed"),
        ("\u2160.example", "isn't allowed"),
        ("a\ufe0fb.example", "(U+FE0F) isn't allowed"),
        ("\u0301a.example", "isn't allowed by IDNA 2008"),
        ("ab--\u00fc.example", "isn't allowed by IDNA 2008"),
        ("a\u200db.example", "isn't allowed"),
        ("\u00fc" * 60 + ".example", "isn't allowed"),
        ("\uff11.\uff12.\uff13.\uff14", "isn't allowed"),
    ],
)
def test_refused(text: str, words: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@given(st.one_of(st.text(max_size=80), st.text("ab.-*_0x1:/[]% \u00fc\u0644\u200d\U0001f600", max_size=20)))
def test_any_text_is_taken_or_refused_in_words(text: str) -> None:
    try:
        target = parse_target(text)
    except TargetError as error:
        words = str(error)
    else:
        words = ""
        assert parse_target(target.text) == target
        assert target.text.isascii()
        assert target.text == target.text.lower().strip(" ")
    assert words.isprintable()


@given(st.text(max_size=200))
def test_what_is_shown_is_printable_and_short(text: str) -> None:
    shown = show(text)
    assert shown.isprintable()
    assert len(shown) <= 84 * 10


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("API.example.com.", "api.example.com"),
        (".", ""),
        ("192.0.2.1", b"\xc0\0\2\1"),
        ("::1", bytes(15) + b"\1"),
    ],
)
def test_host(text: str, host: str | bytes) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize("text", ["*.example.com", "*", "10.0.0.0/8", "", "a..b"])
def test_a_pattern_is_no_host(text: str) -> None:
    with pytest.raises(TargetError):
        parse_host(text)


def test_idna_is_imported_for_names_outside_ascii_only() -> None:
    code = (
        "import sys; from policies.name import parse_target; parse_target('API.example.com'); "
        "assert 'idna' not in sys.modules; parse_target('b\\u00fccher.example'); assert 'idna' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_idna_the_error_says_what_is_missing() -> None:
    code = (
        "import sys; sys.modules['idna'] = None; from policies.name import *\n"
        "try: parse_target('b\\u00fccher.example')\n"
        "except TargetError as error: assert 'package idna' in str(error)\n"
        "else: raise SystemExit('taken')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
