"""Goal: a declaration means what is written, and nothing that is close to it."""

from __future__ import annotations

import pytest

from runtime.model.reach import (
    EVERYTHING,
    Filesystem,
    Origin,
    Reach,
    canonical_host,
    is_right,
    parse_origin,
    shown,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("https://api.example.com", "api.example.com", 443),
        ("http://Api.Example.COM.:8080", "api.example.com", 8080),
        ("tcp://10.0.0.5:6379", "10.0.0.5", 6379),
        ("tcp://[2001:DB8::0:1]:53", "2001:db8::1", 53),
        ("https://bücher.example", "xn--bcher-kva.example", 443),
        ("unix:/run/some.sock", "/run/some.sock", 0),
    ],
)
def test_an_origin_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_origin(text) == Origin(text, host, port)


@pytest.mark.parametrize(
    "text",
    ["", "api.example.com", "api.example.com:443", "https://", "https://a/path", "https://a/", "https://me@a",
     "https://a?b", "gopher://a", "https://a:0", "https://a:70000", "https://a:x", "unix:run/some.sock", "unix:",
     "https://*.example.com", "https://*", "https://a b", "https://a\nb", "https://a..b", "https://-a", "https://a,b"],
)  # fmt: skip
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_origin(text)


def test_an_address_has_one_form() -> None:
    assert canonical_host("::ffff:127.0.0.1") == canonical_host("127.0.0.1") == "127.0.0.1"
    assert canonical_host("FE80::1%eth0") == "fe80::1"


@pytest.mark.parametrize(
    ("rights", "database"),
    [
        (None, True),
        ((), False),
        (("outbox.write",), True),
        (("mail.send", "outbox.read"), True),
        (("mail.send",), False),
        (("write.mail",), False),
    ],
)
def test_rights_to_read_or_write_are_rights_for_the_database(
    rights: tuple[str, ...] | None, database: bool
) -> None:
    reach = Reach(rights=rights)
    assert (reach.database, reach.is_confined) == (database, not database)


def test_what_is_not_declared_is_not_bounded() -> None:
    assert not EVERYTHING.is_confined
    assert EVERYTHING.holds("any.thing")
    assert EVERYTHING.unsaid == ("rights", "egress", "filesystem")
    assert Reach(egress=()).is_confined
    assert Reach(filesystem=Filesystem()).is_confined
    assert Reach(egress=(), rights=()).unsaid == ("filesystem",)


def test_a_right_has_a_thing_and_an_action() -> None:
    assert all(map(is_right, ["outbox.write", "a.b.c"]))
    assert not any(map(is_right, ["outbox", "", ".", "a.", ".b", "a b.c", "x." + "y" * 64, 3, None]))


def test_declarations_are_shown_in_words() -> None:
    assert shown(EVERYTHING) == ""
    assert shown(Reach(rights=(), egress=(), filesystem=Filesystem())) == (
        ", rights none, egress none, reads nothing, writes nothing"
    )
    some = Reach(
        rights=("a.read", "a.write"),
        egress=(parse_origin("https://a"),),
        filesystem=Filesystem(read=("/in",), write=("/out",)),
    )
    assert shown(some) == ", rights a.read a.write, egress https://a, reads /in, writes /out"
