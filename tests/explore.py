"""`make explore`: the property tests with fresh seeds, round after round, until one finds something.

`make test` draws the same examples each time, so that it is never red by chance; here new ones are looked for. A round
that fails says how to run it again.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
from collections.abc import Sequence

#: the profile of tests/conftest.py that draws by the seed
PROFILE = "explore"


def command(seed: int, tests: Sequence[str]) -> list[str]:
    """One round: every property test, drawn by this seed; Hypothesis gives them their mark."""
    chosen = ["-m", "hypothesis", f"--hypothesis-profile={PROFILE}", f"--hypothesis-seed={seed}"]
    return [sys.executable, "-m", "pytest", "-q", "--no-header", *chosen, *tests]


def main(arguments: Sequence[str] | None = None) -> int:
    """1 when a round failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="rounds, each with a seed of its own (default 10)")
    parser.add_argument("--seed", type=int, help="one round with this seed, as an earlier one printed it")
    parser.add_argument("tests", nargs="*", help="files or tests (default: all)")
    options = parser.parse_args(arguments)
    seeds = [secrets.randbelow(1 << 32) for _ in range(options.rounds)] if options.seed is None else [options.seed]
    for number, seed in enumerate(seeds, 1):
        print(f"round {number} of {len(seeds)}, seed {seed}", flush=True)
        if subprocess.run(command(seed, options.tests)).returncode:
            again = " ".join(
                ["make explore", f"SEED={seed}", *([f'TESTS="{" ".join(options.tests)}"'] * bool(options.tests))]
            )
            print(f"seed {seed} found something. To run it again: {again}")
            return 1
    print(f"{len(seeds)} rounds found nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
