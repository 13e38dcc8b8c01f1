"""Goal: of each message it is known, and told, whether it left. Method: a real server that fails at every stage."""

from __future__ import annotations

import re
import select
import shutil
import socket
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest

from handlers.mailer import Attachment, Mailer, MailError, Sent, Transport, transport_of
from tests.helpers import smtp
from tests.helpers.smtp import TO, Server

URL = "https://example.com/unsubscribe?t=" + "x" * 300


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a certificate for this machine, with its key; empty where nothing can make one."""
    if shutil.which("openssl") is None:
        return ""
    path = tmp_path_factory.mktemp("certificate") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", path, "-out", path.with_suffix(".crt")],
        check=True,
        capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return str(path)


@pytest.fixture(scope="module")
def post(certificate: str) -> Iterator[Server]:
    with smtp.running(certificate) as running:
        yield running


def send(mailer: Mailer, key: str = "k", **given: Any) -> Sent:
    return mailer.send(**{"to": TO, "subject": "Hello", "text": "How are you?"} | given, idempotency_key=key)


def failure(mailer: Mailer, key: str = "k", **given: Any) -> MailError:
    with pytest.raises(MailError) as caught:
        send(mailer, key, **given)
    return caught.value


def test_an_accepted_message_has_all_that_it_was_given(post: Server) -> None:
    sent = send(
        post.mailer(),
        subject="Grüße " * 30,
        text="first\r\n.second\n\rlast\n" + "ü" * 2000,
        html="<p>Hällo</p>",
        reply_to="answers@example.com",
        from_name='Ünser, "Team"',
        attachments=[Attachment("größe.csv", b"a,b\r\n\0\xff", "text/csv"), Attachment("x.bin", b"")],
        unsubscribe_url=URL,
    )
    got = post.taken()
    assert sent.outcome == "accepted"
    assert got["Message-ID"] == sent.message_id
    assert (got["To"], got["Reply-To"], got["Subject"]) == (TO, "answers@example.com", "Grüße " * 30)
    assert got["From"].addresses[0].display_name == 'Ünser, "Team"'
    assert got["From"].addresses[0].addr_spec == "app@example.com"
    assert f"\r\nList-Unsubscribe: <{URL}>\r\n" in post.raw, "no mailbox decodes what is folded here"
    assert got["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    plain, html = got.get_body(("plain",)), got.get_body(("html",))
    assert plain is not None
    assert html is not None
    assert plain.get_content().splitlines() == ["first", ".second", "", "last", "ü" * 2000]
    assert html.get_content().splitlines() == ["<p>Hällo</p>"]
    files = [(each.get_filename(), each.get_payload(decode=True)) for each in got.iter_attachments()]
    assert files == [("größe.csv", b"a,b\r\n\0\xff"), ("x.bin", b"")]


def test_a_url_and_a_key_are_not_decoded(post: Server) -> None:
    url = f"https://example.com/{ENCODED}"
    send(post.mailer(idempotency_header="X-Key"), ENCODED, unsubscribe_url=url)
    assert post.taken()["Bcc"] is None
    assert f"\r\nList-Unsubscribe: <{url}>\r\n" in post.raw
    assert f"\r\nX-Key: {ENCODED}\r\n" in post.raw


@pytest.mark.parametrize(
    "text",
    [
        "10\u00a0€",
        "👨\u200d👩\u200d👧",
        "שלום\u200f",
        "=?",
        "50 % =?",
        "a?=",
        '"q\\" <a@b>, x',
        "ü" * 200,
        "a  b " * 40,
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_a_line_arrives_as_it_was_given(post: Server, text: str) -> None:
    send(post.mailer(), subject=text, from_name=text, attachments=[Attachment(text, b"")])
    got = post.taken()
    [attachment] = got.iter_attachments()
    [sender] = got["From"].addresses
    assert got["Subject"].strip() == text.strip()
    for found in (sender.display_name, attachment.get_filename() or ""):
        assert "".join(found.split()) == "".join(text.split()), "spaces move where the library folds a line"


def test_a_plain_message_arrives_line_by_line(post: Server) -> None:
    text = "one\n.\n..two\n.three"
    send(post.mailer(), text=text)
    assert post.taken().get_content().splitlines() == text.splitlines()


@pytest.mark.parametrize("text", ["a\r.\rb", "a\n.\r\nMAIL FROM:<x@y>\r\n", "a\r\n.\n\r\nb", "ü\r.\r"])
def test_a_text_cannot_end_its_message(post: Server, text: str) -> None:
    send(post.mailer(), text=text)
    assert post.taken().get_content().splitlines() == text.splitlines()
    assert not re.search("(?<!\r)\n|\r(?!\n)", post.raw), "what one server takes for an end, another may not"


def test_the_same_key_and_content_make_the_same_message_id(post: Server) -> None:
    ids = {send(post.mailer(), key, text=text).message_id for key, text in ("ax", "ax", "bx", "ay")}
    assert len(ids) == 3, (
        "a row of another database may have the same key, and mailboxes drop what they know by its id"
    )
    assert {post.taken()["Message-ID"] for _ in range(4)} == ids


@pytest.mark.parametrize(
    ("way", "code", "outcome", "retried"),
    [
        ("drops banner", "connection_lost", "not_sent", True),
        ("drops ehlo", "connection_lost", "not_sent", True),
        ("drops mail", "connection_lost", "not_sent", True),
        ("drops rcpt", "connection_lost", "not_sent", True),
        ("drops data", "connection_lost", "not_sent", True),
        ("drops text", "connection_lost", "unknown", False),
        ("drops end", "connection_lost", "unknown", False),
        ("refuses mail", "refused", "not_sent", False),
        ("refuses rcpt", "refused", "not_sent", False),
        ("defers rcpt", "refused_for_now", "not_sent", True),
        ("refuses data", "refused", "not_sent", False),
        ("refuses text", "refused", "not_sent", False),
        ("defers text", "refused_for_now", "not_sent", True),
        ("babbles", "protocol_broken", "unknown", False),
    ],
)
def test_at_each_stage_it_is_known_what_became_of_the_message(
    post: Server, way: str, code: str, outcome: str, retried: bool
) -> None:
    mailer = post.mailer(way)
    error = failure(mailer, way.replace(" ", "-"))
    assert (error.code, error.outcome, mailer.may_retry(error)) == (code, outcome, retried)
    assert (error.reply is not None) == code.startswith("refused")
    if way == "drops end":
        assert post.taken()["Subject"] == "Hello", "it did arrive, which nobody could know"


@pytest.mark.parametrize(
    ("way", "timeout_s", "outcome"), [("never greets", 0.3, "not_sent"), ("never answers", 2.0, "unknown")]
)
def test_a_server_that_says_nothing_is_left(post: Server, way: str, timeout_s: float, outcome: str) -> None:
    error = failure(post.mailer(way, timeout_s=timeout_s))
    assert (error.code, error.outcome) == ("timed_out", outcome)


@pytest.mark.parametrize(
    ("said", "every_s", "timeout_s", "code"),
    [
        (b"220-go on\r\n" * 1000, 0.0, 60.0, "connection_lost"),
        (b"2", 0.1, 0.5, "timed_out"),
        (b"220-go on\r\n", 0.1, 0.5, "timed_out"),
    ],
    ids=["without end", "bytes", "lines"],
)
def test_a_server_may_neither_speak_for_ever_nor_stretch_its_words(
    said: bytes, every_s: float, timeout_s: float, code: str
) -> None:
    left = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak() -> None:
            client, _ = listening.accept()
            with client, suppress(OSError):
                for _ in range(10_000):
                    client.sendall(said)
                    if select.select([client], [], [], every_s)[0]:
                        break
                else:
                    return
            left.append(True)

        speaking = Thread(target=speak)
        speaking.start()
        host, port = listening.getsockname()
        error = failure(Mailer(Transport(host, port, "none", "app@example.com", timeout_s=timeout_s)))
        speaking.join()
    assert (error.code, error.outcome) == (code, "not_sent")
    assert left, "it was heard to its end"


def test_a_connection_that_ends_after_the_answer_changes_nothing(post: Server) -> None:
    assert send(post.mailer("drops quit")).outcome == "accepted"
    assert post.taken()["Subject"] == "Hello"


def test_nobody_at_the_port_is_not_sent() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        mailer = Mailer(Transport("127.0.0.1", taken.getsockname()[1], "none", "app@example.com"))
        error = failure(mailer)
    assert (error.code, error.outcome, mailer.may_retry(error)) == ("connection_failed", "not_sent", True)


def test_an_unknown_outcome_may_be_repeated_where_the_server_knows_the_key(post: Server) -> None:
    mailer = post.mailer("drops end", idempotency_header="Idempotency-Key")
    error = failure(mailer, "k" * 200)
    assert (error.outcome, mailer.may_retry(error)) == ("unknown", True)
    post.taken()
    assert f"\r\nIdempotency-Key: {'k' * 200}\r\n" in post.raw


def test_a_login_is_made_and_a_wrong_one_is_no_matter_of_time(post: Server) -> None:
    assert send(post.mailer("login", user="u", password="right")).outcome == "accepted"
    post.taken()
    mailer = post.mailer("login", user="u", password="wrong")
    error = failure(mailer)
    assert (error.code, error.reply, mailer.may_retry(error)) == ("login_refused", 535, False)
    assert failure(post.mailer("fine", user="u", password="right")).code == "login_refused"


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_without_the_encryption_asked_for_nothing_is_said(post: Server, security: Any) -> None:
    error = failure(post.mailer("login", security=security, user="u", password="right"))
    assert (error.code, error.outcome) == ("tls_failed", "not_sent")


def test_what_is_sent_by_starttls_needs_a_certificate_that_is_trusted(
    post: Server, certificate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not certificate:
        pytest.skip("openssl is not here to make a certificate")
    given: dict[str, Any] = {"host": "localhost", "security": "starttls", "user": "u", "password": "right"}
    assert failure(post.mailer("starttls", **given)).code == "tls_failed"
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    assert send(post.mailer("starttls", **given)).outcome == "accepted"
    assert post.taken()["Subject"] == "Hello"
    assert failure(post.mailer("starttls", **given | {"host": "127.0.0.1"})).code == "tls_failed"
    error = failure(post.mailer("drops starttls", **given))
    assert (error.code, error.outcome) == ("connection_lost", "not_sent")


def test_a_repeated_key_with_another_content_is_refused(post: Server) -> None:
    mailer = post.mailer("defers rcpt")
    same: dict[str, Any] = {"attachments": [Attachment("a", b"1")], "unsubscribe_url": URL}
    assert failure(mailer, **same).code == "refused_for_now"
    assert failure(mailer, **same).code == "refused_for_now"
    for other in (
        {"to": "other@example.org"}, {"subject": "other"}, {"text": "other"}, {"html": "other"},
        {"reply_to": "other@example.org"}, {"from_name": "other"}, {"attachments": [Attachment("a", b"2")]},
        {"unsubscribe_url": URL + "x"},
    ):  # fmt: skip
        error = failure(mailer, **(same | other))
        assert (error.code, error.outcome, mailer.may_retry(error)) == ("key_reused", "not_sent", False), (
            other
        )


ENCODED = "=?utf-8?q?a=0d=0aBcc:x@example.org?="  # which the library decodes, and writes as it then is
BREAKS = (ENCODED, "a\r\nBcc: x@example.org", "a\nb", "a\rb", "a\0b", "a\x85b", "a\u2028b", "a\x1fb", "")


@pytest.mark.parametrize(
    "given",
    [
        *({field: text} for field in ("subject", "from_name") for text in BREAKS),
        *({field: f"a@example.org{text}"} for field in ("to", "reply_to") for text in BREAKS[:-1]),
        *({"unsubscribe_url": f"https://example.com/{text}"} for text in BREAKS[1:-1]),
        *({"attachments": [Attachment(text, b"")]} for text in BREAKS),
        {"attachments": [Attachment("a", b"", "text/html\r\nX: y")]},
        {"attachments": [Attachment("a", b"", "multipart/mixed")]},
        {"attachments": [Attachment("a", b"")] * 21},
        {"attachments": [Attachment("a", b"x" * 11 * 2**20)]},
        {"to": "a@example.org, b@example.org"},
        {"to": "A <a@example.org>"},
        {"to": "a@example.org>"},
        {"to": "nobody"},
        {"to": "a@example..org"},
        {"reply_to": "a@example..org"},
        {"attachments": [Attachment("a", "text")]},  # type: ignore[arg-type]
        {"attachments": ["a"]},
        {"attachments": None},
        {"unsubscribe_url": "http://example.com/"},
        {"unsubscribe_url": "https://example.com/>,<mailto:x@example.org"},
        {"unsubscribe_url": "https:///nowhere"},
        {"text": "\ud800"},
        {"text": "x" * 3 * 2**20},
        {"html": "a\0b"},
        {"key": ""},
        {"key": "k" * 201},
        {"key": "a b"},
        {"key": "ü"},
        {"key": "a\r\nb"},
    ],
    ids=lambda given: re.sub(r"\W+", " ", repr(given))[:40],
)
def test_what_would_break_a_header_or_a_bound_is_refused(post: Server, given: dict[str, Any]) -> None:
    mailer = post.mailer()
    error = failure(mailer, **given)
    assert (error.code, error.outcome, mailer.may_retry(error)) == ("invalid_message", "not_sent", False)
    [field] = given
    assert error.field == {"key": "idempotency_key"}.get(field, field)


@pytest.mark.parametrize("way", ["refuses rcpt", "defers rcpt", "drops end", "login"])
def test_no_error_holds_an_address_or_what_a_server_said(post: Server, way: str) -> None:
    error = failure(post.mailer(way, user="user-name" * (way == "login"), password="pass-word"))
    if way == "drops end":
        post.taken()
    said = "".join(traceback.format_exception(error)) + repr(error)
    for secret in (TO, "nobody", "redential", "user-name", "pass-word"):
        assert secret not in said


def test_a_transport_shows_no_password() -> None:
    assert "pass-word" not in repr(Transport("h", 25, "none", "a@example.com", "u", "pass-word"))


def test_without_a_transport_nothing_can_be_sent() -> None:
    mailer = Mailer(transport_of({}))
    assert not mailer.available
    error = failure(mailer)
    assert (error.code, error.outcome, mailer.may_retry(error)) == ("mail_not_configured", "not_sent", False)


def test_the_environment_sets_the_transport() -> None:
    least = {"MAIL_HOST": "mail.example.com", "MAIL_FROM": "app@example.com"}
    assert transport_of(least) == Transport("mail.example.com", 587, "starttls", "app@example.com")
    assert Mailer(transport_of(least)).available
    full = least | {
        "MAIL_SECURITY": "tls", "MAIL_USER": "u", "MAIL_PASSWORD": "p", "MAIL_TIMEOUT": "1m",
        "MAIL_IDEMPOTENCY_HEADER": "X-Key",
    }  # fmt: skip
    expected = Transport("mail.example.com", 465, "tls", "app@example.com", "u", "p", 60.0, "X-Key")
    assert transport_of(full) == expected


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("MAIL_FROM", ""),
        ("MAIL_FROM", "App <app@example.com>"),
        ("MAIL_PORT", "0"),
        ("MAIL_PORT", "smtp"),
        ("MAIL_SECURITY", "ssl"),
        ("MAIL_PASSWORD", "p"),
        ("MAIL_TIMEOUT", "30"),
        ("MAIL_TIMEOUT", "2h"),
        ("MAIL_IDEMPOTENCY_HEADER", "X Key"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(setting: str, value: str) -> None:
    least = {"MAIL_HOST": "mail.example.com", "MAIL_FROM": "app@example.com"}
    with pytest.raises(ValueError, match=setting):
        transport_of(least | {setting: value})


def test_a_password_is_not_sent_in_the_clear() -> None:
    clear = {
        "MAIL_HOST": "mail.example.com", "MAIL_FROM": "app@example.com", "MAIL_SECURITY": "none",
        "MAIL_USER": "u", "MAIL_PASSWORD": "p",
    }  # fmt: skip
    with pytest.raises(ValueError, match="MAIL_SECURITY"):
        transport_of(clear)
    assert transport_of(clear | {"MAIL_HOST": "localhost"}) is not None
