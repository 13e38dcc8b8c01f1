"""How long a lease may be acted upon, by the own clock of the process that holds it.

The database counts a lease from the moment it executes the claim or the renewal. That moment is not known
here, but it is no earlier than when the statement was sent: so counting from then is safe. The clocks need
not agree, only run at the same speed; the margin covers what they drift and what a kill takes.
"""

from __future__ import annotations

MARGIN = 0.05  # of the lease
MARGIN_MIN_S = 0.05


def fence_at_s(sent_s: float, lease_s: float) -> float:
    """The moment by which a handler must be dead, unless a later renewal was confirmed.

    Args:
        sent_s: when the claim, or the last renewal that was confirmed, was sent (monotonic seconds).
    """
    return sent_s + lease_s - max(lease_s * MARGIN, MARGIN_MIN_S)


def begin_by_s(sent_s: float, lease_s: float) -> float:
    """The moment from which a claim is too old to begin its job: half of its lease must be left."""
    return sent_s + lease_s / 2


def needs_renewal(confirmed_s: float, renew_every_s: float, now_s: float) -> bool:
    """Whether a lease, last confirmed at `confirmed_s`, is to be renewed in this round.

    Those of the last half round are left out, so that short jobs are never renewed at all.
    """
    return now_s - confirmed_s >= renew_every_s / 2
