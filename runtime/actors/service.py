"""The whole service of `tenure run`: the embedded database if there is none, the schema, the supervisor."""

from __future__ import annotations

import os
import platform
import signal
import sys
import uuid
from pathlib import Path
from types import FrameType
from typing import NoReturn

from runtime import __version__
from runtime.actors import scheduler, worker
from runtime.actors.guardian import guard
from runtime.actors.supervisor import Role, Supervisor
from runtime.config import Config
from runtime.edges import log
from runtime.edges.embedded import Embedded, living_pid
from runtime.edges.postgres import PostgresStore, parse_url
from runtime.edges.processes import Lifeline
from runtime.model.exits import EXIT_INTERRUPTED
from runtime.rules.fleet import SCHEDULER, Settings
from runtime.rules.restart import RestartPolicy


def run(config: Config, *, until_idle: bool = False) -> int:
    """Serve until told to stop by a signal, or until nothing is left; the exit code.

    Raises:
        ConfigError: the URL is none of PostgreSQL.
        EmbeddedError, StoreUnavailable: the embedded database could not be started.
    """
    if config.database.url:
        parse_url(config.database.url)
    log_fd = os.dup(sys.stderr.fileno())  # in a child, 2 itself is what its handlers print to
    log.setup(log_fd, config.log.level, config.log.format, actor="guardian")
    if config.database.url:
        url = config.database.url
        return guard(lambda lifeline: _serve(config, url, None, log_fd, lifeline, until_idle), set)
    database = Embedded(config.database.data_dir)
    signal.signal(signal.SIGTERM, _leave)  # until the guardian takes over: what has been started is ended
    try:
        url = database.open()
        if database.notice:
            log.event("warning", "database.moved", notice=database.notice)
        store = PostgresStore(url)
        store.install()
        store.close()
        return guard(
            lambda lifeline: _serve(config, url, database, log_fd, lifeline, until_idle),
            lambda: {pid for pid in (database.pid, living_pid(config.database.data_dir)) if pid},
        )
    finally:
        database.close()


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    del signum, frame
    sys.exit(EXIT_INTERRUPTED)


def _serve(
    config: Config, url: str, database: Embedded | None, log_fd: int, lifeline: Lifeline, until_idle: bool
) -> int:
    log.setup(log_fd, config.log.level, config.log.format, actor="supervisor")
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
        queues=config.service.queues,
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
        settings,
        roles,
        method=config.service.start_method,
        log_fd=log_fd,
        database=database,
        lifeline=lifeline,
    ).run()
    log.event("info", "service.ended", code=code)
    return code
