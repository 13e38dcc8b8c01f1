"""The products that can be measured: what each needs, which workloads it takes, and its best settings for each."""

from __future__ import annotations

from dataclasses import dataclass, field

EVERY = (
    "drain push parallel latency cpu mixed backlog snapshot due crash replacement crowd idle memory payloads "
    "ticks"
)
POSTGRES = "drain push latency cpu mixed backlog snapshot crash idle memory"
REDIS = "drain push latency cpu mixed crash memory"


@dataclass(frozen=True)
class Peer:
    works: str
    packages: tuple[str, ...] = ()  # none: it runs in the environment of Tenure
    store: str = "postgres"  # "postgres", "redis" or "none"
    variants: dict[str, str] = field(default_factory=dict)  # by workload; what is not here runs as "default"
    python: tuple[int, int] = (3, 11)

    def variant(self, work: str) -> str:
        return self.variants.get(work, "default")


def _variants(drains: str, cpu: str, **more: str) -> dict[str, str]:
    return {"drain": drains, "backlog": drains, "snapshot": drains, "cpu": cpu, "mixed": cpu, **more}


PEERS = {
    "tenure": Peer(EVERY),
    "pgqueuer": Peer(
        POSTGRES,
        ("pgqueuer[asyncpg,psycopg]==1.6.0", "uvloop==0.23.0"),
        variants=_variants("inline", "cpu"),
    ),
    "procrastinate": Peer(POSTGRES, ("procrastinate==3.10.0",), variants=_variants("tuned", "one")),
    "oban": Peer(POSTGRES, ("oban==0.7.0",), variants=_variants("tuned", "cpu"), python=(3, 12)),
    "awa_pg": Peer(POSTGRES, ("awa-pg==0.6.9",), variants=_variants("inline", "cpu")),
    "huey": Peer(REDIS, ("huey==3.5.4", "redis==8.1.0"), "redis", _variants("tuned", "default")),
    "celery": Peer(
        REDIS, ("celery[redis]==5.7.0",), "redis", _variants("tuned", "default", mixed="fair", crash="late")
    ),
    "futures_pool": Peer("drain cpu", store="none"),
    "ref": Peer("drain push cpu backlog snapshot payloads"),  # what machine and PostgreSQL can do
}
POSTGRES_PEERS = tuple(
    name for name, peer in PEERS.items() if peer.store == "postgres" and name not in ("tenure", "ref")
)
