"""The virtual environments, one a product, under BENCH_HOME. `python -m bench.environments` makes the driver's and
prints its Python; so this module needs the standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.peers import PEERS

ROOT = Path(__file__).resolve().parent.parent.parent
STAMP = "bench.stamp"  # what was installed; written last


class Unavailable(Exception):  # noqa: N818 - what it is
    """The environment cannot be made here; the text says why."""


def home() -> Path:
    """BENCH_HOME, else a cache directory: of the machine for root, whose own the server's account cannot reach."""
    cache = Path("/var/cache") if os.geteuid() == 0 else Path("~/.cache").expanduser()
    given = os.environ.get("BENCH_HOME")
    return Path(given).resolve() if given else Path(os.environ.get("XDG_CACHE_HOME", cache)) / "tenure-bench"


def environment(name: str) -> Path:
    """The Python of a product's environment, made or brought up to date.

    Raises:
        Unavailable: no fitting Python, or something cannot be installed.
    """
    peer = PEERS[name]
    if not peer.packages:
        name = "tenure"
        words = ["--constraint", str(ROOT / "configs" / "constraints.txt"), "--editable", str(ROOT)]
        words += ["numpy", "matplotlib"]
    else:
        words = [*peer.packages, "psycopg[binary,pool]"]
    place = home() / f"venv-{name}"
    python, stamp = place / "bin" / "python", place / STAMP
    wanted = "\n".join([*words, (ROOT / "pyproject.toml").read_text() if name == "tenure" else ""])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    stamp.unlink(missing_ok=True)
    print(f"making {place}", file=sys.stderr)
    _call(_python(peer.python), "-m", "venv", "--clear", str(place))
    _call(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *words)
    stamp.write_text(wanted)
    return python


def _python(oldest: tuple[int, int]) -> str:
    """The running Python when it is new enough, else another one of this machine."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(15, oldest[1] - 1, -1)]
    pyenv = sorted(map(str, Path("~/.pyenv/versions").expanduser().glob("*/bin/python3")), reverse=True)
    for name in [*names, *pyenv]:
        test = f"import ensurepip, sys, venv; sys.exit(sys.version_info[:2] < {oldest})"
        try:
            subprocess.run([name, "-c", test], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return name
    raise Unavailable(f"Python {oldest[0]}.{oldest[1]} or later with venv is needed")


def _call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise Unavailable(f"{' '.join(words[:4])}: {' / '.join(last)}")


if __name__ == "__main__":
    home().mkdir(parents=True, exist_ok=True)
    print(environment("tenure"))
