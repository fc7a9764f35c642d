"""`python -m tests.unit.model.walk --seconds 3600 --seed 7`: random executions, each given by a seed that repeats it.

Each takes one of the worlds of `scenarios.SOUND` and deviates up to six times, at random points. A violation is printed
with its seed and its schedule, and the exit code is then 1. `--only SEED` repeats one execution.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from .execution import Result, installed
from .explore import wander
from .rules import ALL
from .scenarios import SOUND


def one(seed: int) -> tuple[str, Result]:
    """The execution of this seed."""
    chance = random.Random(seed)
    name = chance.choice(sorted(SOUND))
    rate = chance.choice((0.01, 0.03, 0.1))
    return name, wander(SOUND[name].setup, ALL, SOUND[name].bounds, seed, rate=rate)


def main() -> int:
    """Walk until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    with installed():
        if options.only is not None:
            name, result = one(options.only)
            print(f"{name}\n{result}")
            return 1 if result.violations else 0
        print(f"seed {options.seed}, {options.seconds:.0f} s", flush=True)
        began, count = time.monotonic(), 0
        broken: Counter[str] = Counter()
        while time.monotonic() < began + options.seconds:
            seed = options.seed * 1_000_000 + count
            name, result = one(seed)
            count += 1
            for violation in result.violations:
                broken[violation] += 1
            if result.violations:
                print(f"--only {seed} ({name})\n{result}", flush=True)
        told = ", ".join(f"{violation} {times} times" for violation, times in broken.items()) or "nothing was broken"
        print(f"{count} executions: {told}")
        return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
