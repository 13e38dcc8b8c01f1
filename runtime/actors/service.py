"""The whole service of `tenure run`: the embedded database if there is none, the schema, the supervisor."""

from __future__ import annotations

import os
import platform
import sys
import uuid
from pathlib import Path

from runtime import __version__
from runtime.actors import scheduler, worker
from runtime.actors.supervisor import Role, Supervisor
from runtime.config import Config
from runtime.edges import log
from runtime.edges.embedded import Embedded
from runtime.edges.postgres import PostgresStore
from runtime.rules.fleet import SCHEDULER, Settings
from runtime.rules.restart import RestartPolicy


def run(config: Config, *, until_idle: bool = False) -> int:
    """Serve until told to stop by a signal, or until nothing is left; the exit code.

    Raises:
        EmbeddedError, StoreUnavailable, SchemaOutdated: the service could not begin.
    """
    log_fd = sys.stderr.fileno()
    log.setup(log_fd, config.log.level, config.log.format, actor="supervisor")
    if config.database.url:
        return _serve(config, config.database.url, None, log_fd, until_idle=until_idle)
    database = Embedded(config.database.data_dir)
    url = database.open()
    try:
        store = PostgresStore(url)
        store.install()
        store.close()
        return _serve(config, url, database, log_fd, until_idle=until_idle)
    finally:
        database.close()


def _serve(config: Config, url: str, database: Embedded | None, log_fd: int, *, until_idle: bool) -> int:
    node = str(uuid.uuid4())
    settings = Settings(
        node=node,
        host=platform.node(),
        pid=os.getpid(),
        version=__version__,
        workers=config.worker_count,
        lease_s=config.lease.duration,
        renew_every_s=config.lease.renew_every,
        kill_after_s=config.worker.kill_after,
        ready_within_s=config.service.ready_within,
        grace_s=config.service.shutdown_grace,
        memory_bytes=config.worker.memory_limit,
        until_idle=until_idle,
        postgres=database is not None,
        restart=RestartPolicy(
            first_delay_s=config.restart.first_delay,
            factor=config.restart.factor,
            max_delay_s=config.restart.max_delay,
            unhealthy_after=config.restart.unhealthy_after,
            healthy_after_s=config.restart.healthy_after,
        ),
    )
    roles = {SCHEDULER: Role(scheduler.main, scheduler.Spec(config, url, node))}
    for number in range(1, config.worker_count + 1):
        roles[f"worker {number}"] = Role(worker.main, worker.Spec(config, url, node, number))
    log.event("info", "service.starts", node=node, workers=config.worker_count, directory=str(Path.cwd()))
    code = Supervisor(
        settings, roles, method=config.service.start_method, log_fd=log_fd, database=database
    ).run()
    log.event("info", "service.ended", code=code)
    return code
