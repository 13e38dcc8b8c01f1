"""E-mail over SMTP, for handlers: one message to one address, and an honest word on whether it left.

A message was accepted, was not sent, or nobody can know: the connection was lost after its text had begun to leave.
Nothing here logs, and no error holds an address, a text or a server's words: only a fixed code and SMTP's number.

The transport is set by the environment; without MAIL_HOST there is none, and `Mailer.available` is False.

    MAIL_HOST, MAIL_PORT       the server; the port is 587, or 465 with MAIL_SECURITY=tls
    MAIL_SECURITY              starttls (the default), tls, or none
    MAIL_USER, MAIL_PASSWORD   both or none; not with MAIL_SECURITY=none, except to this machine
    MAIL_FROM                  the address that all messages come from
    MAIL_TIMEOUT               such as "30s", the default: for a whole message
    MAIL_IDEMPOTENCY_HEADER    the header in which this server takes a key, by which it drops repetitions
"""

from __future__ import annotations

import hashlib
import os
import re
import smtplib
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email.headerregistry import Address
from email.message import EmailMessage
from email.parser import BytesHeaderParser
from email.policy import EmailPolicy, default
from email.utils import formatdate
from typing import Any, Literal, NamedTuple, Protocol
from unicodedata import category
from urllib.parse import urlsplit

import msgspec

from runtime import provider
from runtime.model.units import parse_duration

KEY_CHARS = 200
SUBJECT_CHARS = 400
NAME_CHARS = 200
ADDRESS_CHARS = 254
URL_CHARS = 900  # a header is one line of at most 998
TEXT_BYTES = 2 * 2**20  # of the text and of the HTML, each
ATTACHMENTS_MAX = 20
ATTACHMENTS_BYTES = 10 * 2**20  # of all together
KEYS_KEPT = 10_000  # newest keys whose content a process remembers
REPLIES_BYTES = 256 * 2**10  # of all that a server says about one message
TIMEOUT_S = 30.0
THIS_MACHINE = ("localhost", "127.0.0.1", "::1")

Security = Literal["starttls", "tls", "none"]
Outcome = Literal["not_sent", "unknown"]
Code = Literal[
    "mail_not_configured",
    "invalid_message",
    "key_reused",  # with another content
    "connection_failed",
    "tls_failed",
    "login_refused",
    "refused",  # the sender, the recipient or the message, for good
    "refused_for_now",
    "connection_lost",
    "timed_out",
    "protocol_broken",  # the answer is none of SMTP
]
TRANSPORT: tuple[Code, ...] = ("connection_failed", "tls_failed", "login_refused")  # no message's own failure
LASTING: tuple[Code, ...] = (
    "mail_not_configured",
    "invalid_message",
    "key_reused",
    "tls_failed",
    "login_refused",
    "refused",
)

_ADDRESS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_BREAKING = {"Cc", "Cs", "Zl", "Zp"}  # controls, halves of characters, separators of lines and paragraphs
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]*/[a-z0-9][a-z0-9.+-]*")
_SECURITIES: dict[str, Security] = {"starttls": "starttls", "tls": "tls", "none": "none"}


class MailError(Exception):
    """A message that was not accepted.

    Attributes:
        code: a fixed word.
        outcome: `not_sent`, or `unknown`: it may have arrived.
        field: of an invalid message, what is wrong with it.
        reply: the number of the server's answer.
    """

    def __init__(
        self, code: Code, outcome: Outcome = "not_sent", *, field: str | None = None, reply: int | None = None
    ) -> None:
        super().__init__(code, outcome, field, reply)
        self.code = code
        self.outcome = outcome
        self.field = field
        self.reply = reply

    def __str__(self) -> str:
        details = [self.outcome, self.field, None if self.reply is None else f"SMTP {self.reply}"]
        return f"{self.code} ({', '.join(filter(None, details))})"


class Attachment(msgspec.Struct, frozen=True):
    """A file in a message."""

    name: str
    content: bytes
    type: str = "application/octet-stream"


class Sent(NamedTuple):
    """A message that a server took over."""

    message_id: str  # the same for the same key and content
    outcome: Literal["accepted"] = "accepted"


class Transport(NamedTuple):
    """A server and how to speak to it. Printed, it shows no password."""

    host: str
    port: int
    security: Security
    sender: str
    user: str = ""
    password: str = ""
    timeout_s: float = TIMEOUT_S
    idempotency_header: str = ""  # empty: the server may send a repeated message twice

    def __repr__(self) -> str:
        return f"Transport({self.host}:{self.port}, {self.security})"


class Keys(Protocol):
    """Remembers what was sent under which key."""

    def content_of(self, key: str, content: str) -> str:
        """The digest that was remembered for a key; `content`, from now on, where there was none."""
        ...


class RecentKeys:
    """The newest keys of this process. An outbox keeps a row for each message, which remembers for good."""

    def __init__(self, limit: int = KEYS_KEPT) -> None:
        self._limit = limit
        self._contents: OrderedDict[str, str] = OrderedDict()

    def content_of(self, key: str, content: str) -> str:
        known = self._contents.setdefault(key, content)
        self._contents.move_to_end(key)
        while len(self._contents) > self._limit:
            self._contents.popitem(last=False)
        return known


class Mailer:
    """Sends messages over one transport; `transport` is None where none is set."""

    def __init__(self, transport: Transport | None, keys: Keys | None = None) -> None:
        self._transport = transport
        self._keys = keys if keys is not None else RecentKeys()

    @property
    def available(self) -> bool:
        """Whether there is a transport. Look before a batch: without one, nothing in it is to be charged."""
        return self._transport is not None

    def may_retry(self, error: MailError) -> bool:
        """Whether the same message may be sent again: not when it was refused, nor when it might arrive twice."""
        if error.outcome == "unknown":
            return self._transport is not None and bool(self._transport.idempotency_header)
        return error.code not in LASTING

    def send(
        self,
        to: str,
        subject: str,
        text: str,
        html: str | None = None,
        reply_to: str | None = None,
        from_name: str | None = None,
        attachments: Sequence[Attachment] = (),
        unsubscribe_url: str | None = None,
        *,
        idempotency_key: str,
    ) -> Sent:
        """Hand one message to the server.

        Args:
            to: one address, without a name.
            unsubscribe_url: an https URL to which a POST ends the subscription, with one click (RFC 8058).
            idempotency_key: 1 to 200 visible ASCII characters, made from the row that asks for the message, such
                as "invoice-42": the same for each try of the same message, and for no other message.

        Raises:
            MailError: it was not accepted; `outcome` says whether it may have left all the same.
        """
        transport = self._transport
        if transport is None:
            raise MailError("mail_not_configured")
        if not _is_visible(idempotency_key, KEY_CHARS):
            raise MailError("invalid_message", field="idempotency_key")
        message = EmailMessage(_POLICY)
        _write_head(message, transport, to, subject, reply_to, from_name, unsubscribe_url)
        _write_body(message, text, html, attachments)
        content = digest(to, subject, text, html, reply_to, from_name, attachments, unsubscribe_url)
        if self._keys.content_of(idempotency_key, content) != content:
            raise MailError("key_reused")
        name = hashlib.sha256(f"{idempotency_key} {content}".encode()).hexdigest()[:32]
        message_id = f"<{name}@{transport.sender.rpartition('@')[2]}>"
        message["Message-ID"] = message_id
        message["Date"] = formatdate()
        if transport.idempotency_header:
            message[transport.idempotency_header] = idempotency_key
        data = _wire(message)
        _check_head(data, message, to, subject, reply_to, from_name)
        _deliver(transport, to, data)
        return Sent(message_id)


def digest(
    to: str,
    subject: str,
    text: str,
    html: str | None = None,
    reply_to: str | None = None,
    from_name: str | None = None,
    attachments: Sequence[Attachment] = (),
    unsubscribe_url: str | None = None,
) -> str:
    """What a key stands for: a hash of all that makes a message what it is, for whoever keeps it with the key."""
    parts = (to, subject, text, html, reply_to, from_name, attachments, unsubscribe_url)
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()


# -- settings


def transport_of(environ: Mapping[str, str]) -> Transport | None:
    """The transport that the environment sets; None when MAIL_HOST does not.

    Raises:
        ValueError: names the variable that is missing or wrong.
    """
    host = environ.get("MAIL_HOST", "")
    if not host:
        return None
    security = _SECURITIES.get(environ.get("MAIL_SECURITY", "starttls"))
    if security is None:
        raise ValueError("MAIL_SECURITY must be starttls, tls or none")
    port = environ.get("MAIL_PORT", "465" if security == "tls" else "587")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("MAIL_PORT must be a number from 1 to 65535")
    sender = environ.get("MAIL_FROM", "")
    if not _is_address(sender):
        raise ValueError("MAIL_FROM must be an address, such as app@example.com")
    user, password = environ.get("MAIL_USER", ""), environ.get("MAIL_PASSWORD", "")
    if bool(user) != bool(password):
        raise ValueError("MAIL_USER and MAIL_PASSWORD go together; set both or none")
    if password and security == "none" and host not in THIS_MACHINE:
        raise ValueError("MAIL_SECURITY=none would send MAIL_PASSWORD in the clear; use starttls or tls")
    header = environ.get("MAIL_IDEMPOTENCY_HEADER", "")
    if header and not _HEADER.fullmatch(header):
        raise ValueError("MAIL_IDEMPOTENCY_HEADER must be the name of a header")
    try:
        timeout_s = parse_duration(environ.get("MAIL_TIMEOUT", f"{TIMEOUT_S:.0f}s"))
    except ValueError as cause:
        raise ValueError(f"MAIL_TIMEOUT: {cause}") from cause
    if not 0 < timeout_s <= 3600:
        raise ValueError("MAIL_TIMEOUT must be more than 0 and at most 1h")
    return Transport(host, int(port), security, sender, user, password, timeout_s, header)


@provider(Mailer)
def mailer() -> Mailer:
    """The mailer that handlers ask for."""
    return Mailer(transport_of(os.environ))


# -- what a message may hold


def _is_address(text: object) -> bool:
    return isinstance(text, str) and len(text) <= ADDRESS_CHARS and bool(_ADDRESS.fullmatch(text))


def _is_visible(text: object, most: int) -> bool:
    return isinstance(text, str) and 0 < len(text) <= most and all("!" <= each <= "~" for each in text)


def _is_line(text: object, most: int) -> bool:
    """Text without any line break or control character: a header cannot be ended by it."""
    return isinstance(text, str) and 0 < len(text) <= most and _BREAKING.isdisjoint(map(category, text))


def _is_text(text: object) -> bool:
    try:
        return isinstance(text, str) and len(text.encode()) <= TEXT_BYTES and "\0" not in text
    except UnicodeEncodeError:
        return False


def _is_attachment(each: object) -> bool:
    return (
        isinstance(each, Attachment)
        and isinstance(each.content, bytes)
        and isinstance(each.type, str)
        and _is_line(each.name, NAME_CHARS)
        and bool(_TYPE.fullmatch(each.type))
    )


def _is_link(url: object) -> bool:
    if not _is_visible(url, URL_CHARS) or not isinstance(url, str) or set(url) & set('<>"\\^`{|}'):
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname)


def _check(field: str, *, holds: bool) -> None:
    if not holds:
        raise MailError("invalid_message", field=field)


def _write_head(
    message: EmailMessage,
    transport: Transport,
    to: str,
    subject: str,
    reply_to: str | None,
    from_name: str | None,
    unsubscribe_url: str | None,
) -> None:
    _check("to", holds=_is_address(to))
    _check("subject", holds=_is_line(subject, SUBJECT_CHARS))
    _check("reply_to", holds=reply_to is None or _is_address(reply_to))
    _check("from_name", holds=from_name is None or _is_line(from_name, NAME_CHARS))
    _check("unsubscribe_url", holds=unsubscribe_url is None or _is_link(unsubscribe_url))
    message["From"] = Address(display_name=from_name or "", addr_spec=transport.sender)
    message["To"] = to
    message["Subject"] = subject
    if reply_to is not None:
        message["Reply-To"] = reply_to
    if unsubscribe_url is not None:
        message["List-Unsubscribe"] = f"<{unsubscribe_url}>"
        message["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"


def _write_body(
    message: EmailMessage, text: str, html: str | None, attachments: Sequence[Attachment]
) -> None:
    _check("text", holds=_is_text(text))
    message.set_content(text)
    if html is not None:
        _check("html", holds=_is_text(html))
        message.add_alternative(html, subtype="html")
    _check("attachments", holds=isinstance(attachments, Sequence) and len(attachments) <= ATTACHMENTS_MAX)
    _check("attachments", holds=all(map(_is_attachment, attachments)))
    _check("attachments", holds=sum(len(each.content) for each in attachments) <= ATTACHMENTS_BYTES)
    for each in attachments:
        main, _, sub = each.type.partition("/")
        _check("attachments", holds=main not in ("multipart", "message"))
        message.add_attachment(each.content, maintype=main, subtype=sub, filename=each.name)
        [*_, part] = message.iter_attachments()
        _check("attachments", holds=_unspaced(part.get_filename() or "") == _unspaced(each.name))


def _check_head(
    data: bytes, message: EmailMessage, to: str, subject: str, reply_to: str | None, from_name: str | None
) -> None:
    """Refuse a message whose head does not say what was given, whoever reads it; spaces may move, as lines are folded.

    The library takes an encoded word, such as =?utf-8?q?=0A?=, for what it stands for, and writes that as it is.
    """
    head = BytesHeaderParser(policy=default).parsebytes(data.partition(b"\r\n\r\n")[0])

    def addresses(name: str) -> list[tuple[str, str]]:
        found = head[name].addresses if name in head else ()
        return [(_unspaced(each.display_name), each.addr_spec) for each in found]

    _check("from_name", holds=[name for name, _ in addresses("From")] == [_unspaced(from_name or "")])
    _check("to", holds=addresses("To") == [("", to)])
    _check("subject", holds=_unspaced(head["Subject"]) == _unspaced(subject))
    _check("reply_to", holds=addresses("Reply-To") == ([] if reply_to is None else [("", reply_to)]))
    _check("subject", holds=head.keys() == message.keys())


def _unspaced(text: str) -> str:
    return "".join(text.split())


class _Policy(EmailPolicy):
    """Lines for SMTP, in ASCII; a word, such as a URL or a key, stays as it is: not decoded, folded or encoded."""

    def header_store_parse(self, name: str, value: Any) -> tuple[str, Any]:
        return (name, value) if _is_visible(value, URL_CHARS + 2) else super().header_store_parse(name, value)

    def fold_binary(self, name: str, value: str) -> bytes:
        if _is_visible(value, URL_CHARS + 2):
            return f"{name}: {value}\r\n".encode()
        return super().fold_binary(name, value)


_POLICY = _Policy(linesep="\r\n", cte_type="7bit", raise_on_defect=False)


def _wire(message: EmailMessage) -> bytes:
    """The message as it is sent, less its end: no line of it begins with a single dot."""
    data = message.as_bytes()
    if not data.endswith(b"\r\n"):
        data += b"\r\n"
    return re.sub(rb"(?m)^\.", b"..", data)


# -- the way out


class _Lines:
    """What a server says, by lines: all of it until a moment, and no more than so much."""

    def __init__(self, sock: socket.socket, until_s: float) -> None:
        self._sock = sock
        self._until_s = until_s
        self._held = b""
        self._left = REPLIES_BYTES

    def readline(self, most: int) -> bytes:
        while b"\n" not in self._held and len(self._held) < most:
            self._sock.settimeout(_left_s(self._until_s))
            data = self._sock.recv(4096)
            if not data:
                break
            self._left -= len(data)
            if self._left < 0:
                raise smtplib.SMTPException
            self._held += data
        end = min(self._held.find(b"\n") + 1 or len(self._held), most)
        line, self._held = self._held[:end], self._held[end:]
        return line

    def close(self) -> None:
        """Nothing is open but the socket."""


class _Smtp(smtplib.SMTP):
    """A server that may take its time to speak, but only so much in all."""

    def __init__(self, until_s: float, *words: Any, **named: Any) -> None:
        self._until_s = until_s
        super().__init__(*words, **named)

    def getreply(self) -> tuple[int, bytes]:
        if (
            self.file is None and self.sock is not None
        ):  # a new connection, or one that is encrypted from here on
            self.file = _Lines(self.sock, self._until_s)
        return super().getreply()


class _SmtpTls(_Smtp, smtplib.SMTP_SSL):
    """The same, encrypted from the first byte on."""


class _Conversation:
    """One connection, for one message; `begun` once the text of the message has begun to leave."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._until_s = time.monotonic() + transport.timeout_s
        self._smtp: smtplib.SMTP | None = None
        self.begun = False

    def hold(self, to: str, data: bytes) -> None:
        """Connect, be allowed to send, and send."""
        transport = self._transport
        context = ssl.create_default_context()
        where = (transport.host, transport.port, _our_name())
        if transport.security == "tls":
            smtp: _Smtp = _SmtpTls(self._until_s, *where, timeout=_left_s(self._until_s), context=context)
        else:
            smtp = _Smtp(self._until_s, *where, timeout=_left_s(self._until_s))
        self._smtp = smtp
        self._hurry(smtp).ehlo_or_helo_if_needed()
        if transport.security == "starttls":
            if not smtp.has_extn("starttls"):
                raise MailError("tls_failed")
            self._hurry(smtp).starttls(context=context)
            self._hurry(smtp).ehlo()
        if transport.user:
            if not smtp.has_extn("auth"):
                raise MailError("login_refused")
            self._hurry(smtp).login(transport.user, transport.password)
        _expect(self._hurry(smtp).mail(transport.sender), 250)
        _expect(self._hurry(smtp).rcpt(to), 250, 251)
        _expect(self._hurry(smtp).docmd("DATA"), 354)
        self._hurry(smtp)
        self.begun = True
        smtp.send(data + b".\r\n")
        _expect(smtp.getreply(), 250, told="unknown")

    def close(self) -> None:
        """Say goodbye; what comes of it changes nothing any more."""
        if self._smtp is not None:
            with suppress(smtplib.SMTPException, OSError):
                self._hurry(self._smtp).quit()
            with suppress(OSError):
                self._smtp.close()

    def _hurry(self, smtp: smtplib.SMTP) -> smtplib.SMTP:
        """Let the next step take no longer than what is left for the message."""
        if smtp.sock is not None:
            smtp.sock.settimeout(_left_s(self._until_s))
        return smtp


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _expect(reply: tuple[int, bytes], *wanted: int, told: Outcome = "not_sent") -> None:
    """Go on after a wanted reply; `told` is the outcome where the reply is no answer at all."""
    code = reply[0]
    if code in wanted:
        return
    if not 400 <= code < 600:
        raise MailError("protocol_broken", told)
    raise MailError("refused_for_now" if code < 500 else "refused", reply=code)


def _our_name() -> str:
    """What we call ourselves, without asking a name server."""
    name = socket.gethostname()
    return name if "." in name else "[127.0.0.1]"


def _deliver(transport: Transport, to: str, data: bytes) -> None:
    talk = _Conversation(transport)
    try:
        with _said_plainly(talk):
            talk.hold(to, data)
    finally:
        talk.close()


@contextmanager
def _said_plainly(talk: _Conversation) -> Iterator[None]:
    """Make one error of all: the libraries' own hold addresses and what the server has said."""
    try:
        yield
    except MailError:
        raise
    except (smtplib.SMTPException, OSError, UnicodeError, ValueError) as error:
        code, reply = _code_of(error, begun=talk.begun)
        raise MailError(code, "unknown" if talk.begun else "not_sent", reply=reply) from None


def _code_of(error: Exception, *, begun: bool) -> tuple[Code, int | None]:
    if isinstance(error.__context__, TimeoutError):  # smtplib says that the connection was closed
        return "timed_out", None
    match error:
        case smtplib.SMTPResponseException(smtp_code=reply) if begun or not 400 <= reply < 600:
            return "protocol_broken", None  # smtplib's own: the answer had no end
        case smtplib.SMTPResponseException(smtp_code=reply) if reply < 500:
            return "refused_for_now", reply
        case smtplib.SMTPAuthenticationError(smtp_code=reply):
            return "login_refused", reply
        case smtplib.SMTPResponseException(smtp_code=reply):
            return "refused", reply
        case TimeoutError():
            return "timed_out", None
        case (
            smtplib.SMTPServerDisconnected() | ssl.SSLEOFError() | ConnectionResetError() | BrokenPipeError()
        ):
            return "connection_lost", None
        case ssl.SSLError():
            return "tls_failed", None
        case smtplib.SMTPException() | ValueError():
            return "protocol_broken", None
        case _:
            return "connection_failed", None
