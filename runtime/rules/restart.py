"""When does a dead child start again? Policy is data, the past is data, the verdict is data.

Deaths are counted for a role (all workers together), not for a slot: what broke one worker's start breaks
them all, so a role that has just failed starts one child as a probe, and the others when it has proven well.
A death while running a job is the job's and never comes here.
"""

from __future__ import annotations

import msgspec

from runtime.model.units import Count, Seconds

PROBE_S = 1.0  # after deaths, how long a probe must live before the others follow


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Delays grow from `first_delay_s` by `factor` up to `max_delay_s`; six starts in the first minute."""

    first_delay_s: Seconds = 0.1
    factor: float = 3.0
    max_delay_s: Seconds = 30.0
    unhealthy_after: Count = 5
    healthy_after_s: Seconds = 10.0


class Health(msgspec.Struct, frozen=True):
    """The past of one role."""

    deaths: int = 0  # in a row
    not_before_s: float = 0.0  # no start before this moment
    proven: bool = False  # whether children of this role are known to come up


def after_death(health: Health, lived_s: float, now_s: float, chance: float, policy: RestartPolicy) -> Health:
    """The role's health after a death blamed on the environment.

    Args:
        lived_s: how long the child had been ready, in seconds; 0 when it never was.
        chance: a number in [0, 1) for the jitter, up to a tenth of the delay.
    """
    deaths = 1 if lived_s >= policy.healthy_after_s else health.deaths + 1
    doubled_s = policy.first_delay_s * policy.factor ** min(deaths - 1, 64)
    delay_s = min(doubled_s, policy.max_delay_s) * (1.0 + 0.1 * chance)
    return Health(deaths, now_s + delay_s, proven=lived_s >= policy.healthy_after_s)


def after_ready(health: Health, since_s: float, now_s: float, policy: RestartPolicy) -> Health:
    """The role's health while a child started after the last death has been ready since `since_s`.

    It is proven at once in a role without deaths, else when it has lived for `PROBE_S`; after
    `healthy_after_s` the past is forgotten.
    """
    if now_s >= since_s + policy.healthy_after_s:
        return Health(0, 0.0, proven=True)
    if health.deaths and now_s < since_s + PROBE_S:
        return health
    return Health(health.deaths, health.not_before_s, proven=True)


def is_unhealthy(health: Health, policy: RestartPolicy) -> bool:
    return health.deaths >= policy.unhealthy_after and not health.proven
