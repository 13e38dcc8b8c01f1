"""Numbers with a meaning: durations, sizes, and the text forms people write them in.

In Python a duration is a number of seconds; in configuration and on the command line it is a string
with a unit, `"90s"`, `"5m"`, `"1h30m"`. Sizes are bytes, written `"512MiB"`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated

from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")


def parse_duration(text: str) -> float:
    """Seconds of a duration with unit, such as `"250ms"`, `"90s"` or `"1h30m"`.

    Raises:
        ValueError: no number with unit, or trailing characters; the text says what is accepted.
    """
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(
            f'{text!r} is no duration; write a number and a unit, such as "90s", "5m" or "1h30m"'
        )
    return math.fsum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)


def parse_size(text: str) -> int:
    """Bytes of a size with unit, such as `"512MiB"` or `"2GB"`; a bare number is bytes.

    Raises:
        ValueError: not a number with a known unit.
    """
    match = _SIZE.fullmatch(text)
    factor = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f'{text!r} is no size; write a number and a unit, such as "512MiB" or "2GB"')
    return int(float(match[1]) * factor)


def format_duration(seconds: float) -> str:
    """A duration as a person writes it, to two significant units: `"1h30m"`, `"2.5s"`, `"120ms"`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m" if minutes else f"{hours}h"


def clip(text: str, limit: int) -> str:
    """Text of at most `limit` characters, with its head and its tail kept and the cut marked.

    Also made storable: NUL and lone surrogates, which neither jsonb nor UTF-8 can hold, are replaced.
    """
    clean = text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    if len(clean) <= limit:
        return clean
    mark = f"\n… {len(clean) - limit} characters cut …\n"
    keep = max(limit - len(mark), 0)
    head = keep // 2
    return clean[:head] + mark + clean[len(clean) - (keep - head) :]
