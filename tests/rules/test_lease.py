"""How long a lease may be acted upon, by the clock of its holder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.rules.lease import begin_by_s, fence_at_s, needs_renewal

LEASES = st.floats(0.5, 3600.0)
MOMENTS = st.floats(0.0, 1e6)


@given(sent_s=MOMENTS, lease_s=LEASES)
def test_a_handler_is_dead_before_its_lease_ends_and_begins_long_before(
    sent_s: float, lease_s: float
) -> None:
    assert sent_s < begin_by_s(sent_s, lease_s) < fence_at_s(sent_s, lease_s) < sent_s + lease_s


@pytest.mark.parametrize(("lease_s", "margin_s"), [(0.5, 0.05), (2.0, 0.1), (30.0, 1.5)])
def test_the_margin_is_a_share_but_never_less_than_a_kill_takes(lease_s: float, margin_s: float) -> None:
    assert fence_at_s(0.0, lease_s) == pytest.approx(lease_s - margin_s)


@given(lease_s=LEASES, phase=st.floats(0.0, 1.0))
def test_every_lease_is_renewed_before_half_of_it_is_gone(lease_s: float, phase: float) -> None:
    """Rounds at a third of the lease, a claim somewhere between two of them."""
    every_s = lease_s / 3
    claimed_s = phase * every_s
    rounds = [every_s * number for number in range(1, 4)]
    renewed_s = next(at_s for at_s in rounds if needs_renewal(claimed_s, every_s, at_s))
    assert renewed_s - claimed_s <= lease_s / 2 + 1e-9


def test_a_job_of_the_last_half_round_is_left_out() -> None:
    assert not needs_renewal(confirmed_s=6.0, renew_every_s=10.0, now_s=10.0)
    assert needs_renewal(confirmed_s=5.0, renew_every_s=10.0, now_s=10.0)
