"""`python -m runtime.sim`: run schedules by their seeds; the trace of the first that fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from runtime.model.exits import EXIT_FAILED, EXIT_OK
from runtime.sim.schedule import run


def main(argv: Sequence[str]) -> int:
    """Run the schedules that are asked for; 1 when one breaks a promise, with its seed and trace."""
    parser = argparse.ArgumentParser(prog="python -m runtime.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--trace", action="store_true", help="print what happens in each")
    args = parser.parse_args(argv)
    began_s = time.perf_counter()
    events, faults = 0, Counter[str]()
    for seed in range(args.first, args.first + args.seeds):
        outcome = run(seed, traced=args.trace)
        events += outcome.events
        faults += outcome.faults
        if args.trace:
            _say(*outcome.trace)
        if outcome.problem is not None:
            if not args.trace:
                _say(*run(seed, traced=True).trace)
            _say(f"seed {seed} failed after {outcome.virtual_s:.3f} virtual s:", outcome.problem)
            _say(f"again: python -m runtime.sim --seeds 1 --first {seed} --trace")
            return EXIT_FAILED
    took_s = time.perf_counter() - began_s
    _say(*(f"{count:10}  {fault}" for fault, count in sorted(faults.items())))
    _say(
        f"{args.seeds} schedules, {events} events, {faults.total()} faults, {took_s:.1f} s, "
        f"{args.seeds / max(took_s, 1e-9):.0f} schedules/s: all promises held"
    )
    return EXIT_OK


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
