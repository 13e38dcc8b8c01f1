"""The settings: where a value comes from, what is refused, and in which words (F46)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from runtime import config
from runtime.config import Config, DatabaseConfig, LeaseConfig, ServiceConfig, WorkerConfig
from runtime.errors import ConfigError

SHIPPED = Path(__file__).parent.parent / "configs" / "tenure.toml"


def load(directory: Path, text: str | None = None, /, **environ: str) -> Config:
    """The settings of a file with this text, or of none."""
    path = None
    if text is not None:
        path = directory / "settings.toml"
        path.write_text(text, "utf-8")
    return config.load(path, environ, directory)


def refusal(directory: Path, text: str | None = None, /, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(directory, text, **environ)
    assert "\n" not in str(caught.value), "one line"
    return caught.value


# -- where a value comes from


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    found = load(tmp_path)
    assert found.path is None
    assert found.lease == LeaseConfig()
    assert found.worker.timeout == 900.0
    assert found.database.data_dir == tmp_path / ".tenure/postgres"


def test_the_shipped_file_says_the_defaults_and_all_of_them() -> None:
    tables = tomllib.loads(SHIPPED.read_text("utf-8"))
    keys = [f"{section}.{name}" for section, table in tables.items() for name in table]
    assert keys == list(config.TYPES), "each key stands there, in the same order"
    found = config.load(SHIPPED, {}, Path("/"))
    data_dir = SHIPPED.parent.parent / ".tenure/postgres"
    assert found == Config(database=DatabaseConfig(data_dir=data_dir), path=SHIPPED)


def test_the_shipped_file_says_what_each_key_costs() -> None:
    for line in SHIPPED.read_text("utf-8").splitlines():
        if re.match(r"[a-z_]+ = ", line):
            assert "  # " in line, line


def test_a_named_file_goes_before_the_variable_before_the_default_file(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    for name, workers in (("named.toml", 1), ("variable.toml", 2), ("configs/tenure.toml", 3)):
        (tmp_path / name).write_text(f"[service]\nworkers = {workers}\n")
    environ = {"TENURE_CONFIG": "variable.toml"}

    named = config.load(Path("named.toml"), environ, tmp_path)
    assert (named.service.workers, named.path) == (1, tmp_path / "named.toml")
    assert config.load(None, environ, tmp_path).service.workers == 2
    assert config.load(None, {}, tmp_path).service.workers == 3


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    text = '[lease]\nduration = "1m"\nrenew_every = "5s"\n[service]\nhandlers = ["a"]\n'
    found = load(
        tmp_path,
        text,
        TENURE_LEASE__DURATION="2m",
        TENURE_SERVICE__HANDLERS="b, c.d",
        TENURE_SERVICE__WORKERS="3",
        TENURE_RESTART__FACTOR="1.5",
        TENURE_WORKER__MEMORY_LIMIT="1GiB",
        TENURE_LOG__LEVEL="debug",
        TENURE_UNRELATED="1",
    )
    assert (found.lease.duration, found.lease.renew_every) == (120.0, 5.0)
    assert found.service.handlers == ("b", "c.d")
    assert found.service.workers == found.worker_count == 3
    assert found.restart.factor == 1.5
    assert found.worker.memory_limit == 2**30
    assert found.log.level == "debug"


def test_the_url_of_the_database_has_a_variable_of_its_own(tmp_path: Path) -> None:
    text = '[database]\nurl = "postgresql://file/x"\n'
    assert load(tmp_path, text, TENURE_DATABASE_URL="postgresql://env/x").database.url == "postgresql://env/x"
    assert load(tmp_path, text, TENURE_DATABASE_URL="").database.url == "", "empty: the embedded one"
    error = refusal(tmp_path, TENURE_DATABASE_URL="postgresql://a", TENURE_DATABASE__URL="postgresql://b")
    assert error.field == "TENURE_DATABASE_URL"
    assert "TENURE_DATABASE__URL" in error.problem


def test_the_data_directory_is_seen_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc" / "tenure.toml"
    file.write_text('[database]\ndata_dir = "../data"\n')
    found = config.load(file, {}, tmp_path / "elsewhere")
    assert found.database.data_dir.resolve() == tmp_path / "data"
    file.write_text('[database]\ndata_dir = "/var/lib/tenure"\n')
    assert config.load(file, {}, tmp_path).database.data_dir == Path("/var/lib/tenure")


def test_durations_and_sizes_become_seconds_and_bytes(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        '[worker]\ntimeout = "1h30m"\nkill_after = "0s"\nrecycle_memory = "512MiB"\nmemory_limit = ""\n'
        '[restart]\nfirst_delay = "100ms"\n',
    )
    assert (found.worker.timeout, found.worker.kill_after) == (5400.0, 0.0)
    assert (found.worker.recycle_memory, found.worker.memory_limit) == (512 * 2**20, None)
    assert found.restart.first_delay == pytest.approx(0.1)


def test_cores_are_shared_among_the_workers() -> None:
    one = Config(service=ServiceConfig(workers=1))
    assert one.thread_count == Config().worker_count
    assert Config(service=ServiceConfig(workers=1000)).thread_count == 1
    assert Config(worker=WorkerConfig(threads=7)).thread_count == 7


# -- what is refused, and how


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("[service]\nworkrs = 1", "service.workrs", "did you mean service.workers?"),
        ("[service]\nduration = '3s'", "service.duration", "did you mean lease.duration?"),
        ("workers = 1", "workers", "did you mean service.workers?"),
        ("[servce]", "servce", "did you mean service?"),
        ("[service]\nqwxyz = 1", "service.qwxyz", "is not a known setting (in"),
        ("service = 1", "service", "write [service]"),
        ("[service]\nworkers = '2'", "service.workers", "Expected `int`, got `str`"),
        ("[service]\nworkers = -1", "service.workers", ">= 0"),
        ("[service]\nworkers = true", "service.workers", "Expected `int`, got `bool`"),
        ("[service]\nhandlers = 'a'", "service.handlers", "Expected `array`, got `str`"),
        ("[service]\nhandlers = ['']", "service.handlers", "length >= 1"),
        ("[service]\nqueues = []", "service.queues", "length >= 1"),
        ("[service]\nqueues = ['*', 'a']", "service.queues", '"*" means all queues'),
        ("[service]\nstart_method = 'thread'", "service.start_method", "'fork', 'spawn', 'forkserver'"),
        ("[service]\nready_within = '0s'", "service.ready_within", "more than 0"),
        ("[log]\nlevel = 'INFO'", "log.level", "'info'"),
        ("[lease]\nduration = 30", "lease.duration", 'such as "30s"; got 30'),
        ("[lease]\nduration = true", "lease.duration", "text with a unit"),
        ("[lease]\nduration = '30'", "lease.duration", "number and a unit"),
        ("[lease]\nduration = '-1s'", "lease.duration", "number and a unit"),
        ("[lease]\nduration = '99999d'", "lease.duration", "at most"),
        (f"[lease]\nduration = '{'9' * 400}d'", "lease.duration", "at most"),
        ("[lease]\nreclaim_every = '0s'", "lease.reclaim_every", "more than 0"),
        ("[worker]\ntimeout = '0s'", "worker.timeout", "a job without a limit"),
        ("[worker]\ntimeout = '25h'", "worker.timeout", 'at most "24h", got 25h'),
        ("[service]\nredact = 'hooks.redact'", "service.redact", '"module:function"'),
        ("[service]\nstore_error_text = 'no'", "service.store_error_text", "Expected `bool`"),
        ("[worker]\nmemory_limit = 5", "worker.memory_limit", '"512MiB"'),
        ("[worker]\nmemory_limit = '5 pc'", "worker.memory_limit", "is no size"),
        ("[worker]\nmemory_limit = '0'", "worker.memory_limit", '"" for none'),
        (f"[worker]\nmemory_limit = '{'9' * 400}'", "worker.memory_limit", ""),
        ("[restart]\nfactor = 0.5", "restart.factor", ">= 1"),
        ("[restart]\nfactor = nan", "restart.factor", ">= 1"),
        ("[restart]\nunhealthy_after = 0", "restart.unhealthy_after", ">= 1"),
        ("[restart]\nfirst_delay = '1m'", "restart.first_delay", "got 1m and 30s"),
        ("[worker]\nrecycle_memory = '2GB'\nmemory_limit = '1GB'", "worker.recycle_memory", "memory_limit"),
        ("[database]\nurl = 'localhost'", "database.url", "postgresql://"),
        ("[database]\ndata_dir = ''", "database.data_dir", "length >= 1"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(tmp_path: Path, text: str, field: str, says: str) -> None:
    error = refusal(tmp_path, text)
    assert error.field == field
    assert says in error.problem


def test_a_lease_must_outlive_two_lost_renewals(tmp_path: Path) -> None:
    error = refusal(tmp_path, '[lease]\nrenew_every = "11s"\n')
    assert error.field == "lease.renew_every"
    assert "lease.duration" in error.problem
    assert "11s and 30s" in error.problem
    for renew_every, duration in (("10s", "30s"), ("100ms", "300ms"), ("0.7s", "2.1s")):
        load(tmp_path, f'[lease]\nrenew_every = "{renew_every}"\nduration = "{duration}"\n')


@pytest.mark.parametrize(
    ("name", "value", "field", "says"),
    [
        ("TENURE_LEASE__DURATOIN", "3s", "TENURE_LEASE__DURATOIN", "did you mean TENURE_LEASE__DURATION?"),
        ("TENURE_LEASE_DURATION", "3s", "TENURE_LEASE_DURATION", "did you mean TENURE_LEASE__DURATION?"),
        ("TENURE_LEASE__DURATION", "", "lease.duration", "TENURE_LEASE__DURATION"),
        ("TENURE_LEASE__DURATION", "3", "lease.duration", "TENURE_LEASE__DURATION"),
        ("TENURE_SERVICE__WORKERS", "", "service.workers", "is empty"),
        ("TENURE_SERVICE__WORKERS", "two", "service.workers", "Expected `int`"),
        ("TENURE_SERVICE__QUEUES", "", "service.queues", "is empty"),
        ("TENURE_SERVICE__QUEUES", "a,,b", "service.queues", "TENURE_SERVICE__QUEUES"),
        ("TENURE_DATABASE__DATA_DIR", "", "database.data_dir", "is empty"),
        ("TENURE_CONFIG", "", "TENURE_CONFIG", "is empty"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(
    tmp_path: Path, name: str, value: str, field: str, says: str
) -> None:
    error = refusal(tmp_path, **{name: value})
    assert error.field == field
    assert says in error.problem


def test_a_named_file_must_be_there_and_be_toml(tmp_path: Path) -> None:
    missing = refusal(tmp_path, TENURE_CONFIG="missing.toml")
    assert missing.field == str(tmp_path / "missing.toml")
    assert refusal(tmp_path, TENURE_CONFIG=".").field == str(tmp_path), "a directory is no file"
    assert "is no TOML file" in refusal(tmp_path, "[service").problem
    (tmp_path / "latin").write_bytes(b'url = "\xe9"')
    assert "is no TOML file" in refusal(tmp_path, TENURE_CONFIG="latin").problem


# -- secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", ""),
        ("postgresql://host:5432/name", "postgresql://host:5432/name"),
        ("postgres://user@host/name", "postgres://user@host/name"),
        ("postgresql://user:s3cret@host/name", "postgresql://user:***@host/name"),
        ("postgresql://user:s3cret@s3cret@host/name", "postgresql://user:***@host/name"),
        ("postgresql://user:s3cret/?#@host/name", "postgresql://user:***@host/name"),
        ("postgresql://:s3cret@host", "postgresql://:***@host"),
        ("postgresql://host/name?password=s3cret&user=u", "postgresql://host/name?password=***&user=u"),
        ("postgresql://host/name?sslpassword=s3cret", "postgresql://host/name?sslpassword=***"),
        ("host=h password=s3cret user=u", "host=h password=*** user=u"),
        ("host=h password = 'a s3cret\\' s3cret' user=u", "host=h password = *** user=u"),
        ("password=a\\ s3cret user=u", "password=*** user=u"),
        ("password='a s3cret", "password=***"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    database = DatabaseConfig(url=url)
    whole = Config(database=database)
    assert database.shown_url == shown
    for text in (repr(database), str(whole), f"{whole!r}", str(list(database.__rich_repr__()))):
        assert "s3cret" not in text
    assert msgspec.structs.asdict(database)["url"] == url, "whoever connects still has it"
