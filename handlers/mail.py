"""An outbox: a request inserts a row in its own transaction, and the mail is sent once that has committed.

Each step is recorded before the next effect: `sending`, then the call, then its outcome. So a row that is found in
`sending` is one whose run died in the call, and nobody knows whether it arrived; it is sent again only over a
transport that knows its key. What is known for certain goes again with the wait that the claim has set.

    create table outbox (
        id bigint generated always as identity primary key,
        recipient text not null,
        subject text not null,
        body text not null,
        html text,
        reply_to text,
        unsubscribe_url text,
        state text not null default 'waiting',  -- sending, sent, dead, unknown
        failure text,  -- the code of the last one
        digest text,  -- of what was sent first under the key of this row
        message_id text,
        due timestamptz default now(),
        attempts integer not null default 0,
        version integer not null default 1
    );
    create index on outbox (due) where due is not null;
"""

from __future__ import annotations

from typing import Any

from handlers.mailer import TRANSPORT, Mailer, MailError, digest
from runtime import NO_RETRY, Context, Job, WorkTable, every, job
from runtime.edges.worktables import Row

OUTBOX = WorkTable("outbox")
BATCH = 50  # messages of one run; the next one takes the rest


@job("send-mail", retry=NO_RETRY, timeout=3600, schedule=every("1m"), overlap="skip", missed="drop")
class SendMail(Job):
    """Send what is due; how many messages were accepted."""

    def run(self, ctx: Context, mailer: Mailer) -> int:
        if not mailer.available:
            return 0  # before any claim: no row has spent a try
        accepted = 0
        for _ in range(BATCH):
            ctx.check()
            rows = ctx.claim(OUTBOX, limit=1)  # one by one: a run that ends early has charged no other row
            if not rows:
                break
            accepted += _send(ctx, mailer, rows[0])
        return accepted


def _send(ctx: Context, mailer: Mailer, row: Row) -> bool:
    """Send one row's message; whether it was accepted.

    Raises:
        MailError: the transport is broken, which is no failure of this message or the next, and charges none.
    """
    if row["state"] == "sending":
        stopped = MailError("connection_lost", "unknown")
        if not mailer.may_retry(stopped):
            _give_up(ctx, row, stopped)
            return False
    message = _message_of(row)
    content = digest(**message)
    if row["digest"] not in (None, content):
        _give_up(ctx, row, MailError("key_reused"))
        return False
    with ctx.transaction() as tx:
        row.update(tx, state="sending", digest=content)
    try:
        sent = mailer.send(**message, idempotency_key=row.ref)
    except MailError as error:
        ctx.log.warning("mail.failed", row=row.ref, code=error.code, outcome=error.outcome)
        if error.code not in TRANSPORT and not mailer.may_retry(error):
            _give_up(ctx, row, error)
            return False
        if error.code in TRANSPORT:
            with ctx.transaction() as tx:
                row.release(tx, state="waiting", failure=error.code)
            raise
        with ctx.transaction() as tx:
            row.update(tx, state="waiting", failure=error.code)
        return False
    with ctx.transaction() as tx:
        row.done(tx, state="sent", failure=None, message_id=sent.message_id)
    return True


def _message_of(row: Row) -> dict[str, Any]:
    return {
        "to": row["recipient"],
        "subject": row["subject"],
        "text": row["body"],
        "html": row["html"],
        "reply_to": row["reply_to"],
        "unsubscribe_url": row["unsubscribe_url"],
    }


def _give_up(ctx: Context, row: Row, error: MailError) -> None:
    """Leave a row to people: it must not, or need not, go again by itself."""
    with ctx.transaction() as tx:
        row.done(tx, state="unknown" if error.outcome == "unknown" else "dead", failure=error.code)
