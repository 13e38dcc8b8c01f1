"""Windows of time after a key was first seen, in which it is not let through again."""

from __future__ import annotations

KEYS_MAX = 10_000


class Windows:
    """The open windows, `KEYS_MAX` at most; above that the one opened first is forgotten early. For one thread at a time."""

    def __init__(self) -> None:
        self._ends_s: dict[tuple[str, str], float] = {}  # in the order of opening

    def __len__(self) -> int:
        return len(self._ends_s)

    def enter(self, key: tuple[str, str], seconds: float, now_s: float) -> bool:
        """Open the window of a key for so long; False when it is open already, and stays so as it was."""
        if self._ends_s.get(key, now_s) > now_s:
            return False
        self._ends_s.pop(key, None)
        if len(self._ends_s) >= KEYS_MAX:
            self._ends_s = {each: end_s for each, end_s in self._ends_s.items() if end_s > now_s}
        if len(self._ends_s) >= KEYS_MAX:
            del self._ends_s[next(iter(self._ends_s))]
        self._ends_s[key] = now_s + seconds
        return True

    def leave(self, key: tuple[str, str]) -> None:
        """Close a window: what opened it did not happen."""
        self._ends_s.pop(key, None)
