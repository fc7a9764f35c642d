"""`python -m tests.unit.model [--deviations 2] [--scenario TEXT] [--seconds N]`: every execution, beyond the tests.

With two deviations it takes hours; with `--seconds` each scenario ends then, and says that it was not gone through.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from .explore import explore
from .rules import ALL
from .scenarios import SOUND


def main() -> int:
    """Explore what is asked for; the exit code is 1 when something is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deviations", type=int, default=2)
    parser.add_argument("--scenario", default="")
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    broken = False
    for name, scenario in SOUND.items():
        if options.scenario not in name:
            continue
        bounds = replace(scenario.bounds, deviations=options.deviations)
        report = explore(scenario.setup, ALL, bounds, seconds=options.seconds)
        print(f"{name}: {report}", flush=True)
        broken = broken or report.found is not None
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
