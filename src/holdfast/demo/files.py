"""The demo's files: where they are, and the orders in them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: id, customer, cents: the whole row, so that a changed one counts as lost and as never sent
Order = tuple[int, str, int]


@dataclass(frozen=True)
class Folder:
    """Everything one demo writes is below one folder."""

    root: Path

    @property
    def source(self) -> Path:
        """Order files, as Spark reads them."""
        return self.root / "orders"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint location."""
        return self.root / "checkpoint"

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.root / "orders.db"

    @property
    def endpoint(self) -> Path:
        """What the endpoint keeps: a file for each idempotency key."""
        return self.root / "endpoint"

    @property
    def temporary(self) -> Path:
        """For Spark's own temporary files, which a kill leaves behind."""
        return self.root / "tmp"

    @property
    def log(self) -> Path:
        """What the drivers print."""
        return self.root / "driver.log"

    @property
    def stop(self) -> Path:
        """Tells the driver to end by itself."""
        return self.root / "stop"

    def create(self) -> None:
        """Make the folders."""
        for path in (self.source, self.endpoint, self.temporary):
            path.mkdir(parents=True, exist_ok=True)


def make_orders(rows: int, seed: int) -> list[Order]:
    """Orders with unique ids; the same for the same seed."""
    rng = random.Random(seed)
    return [(number, f"customer-{rng.randrange(1000)}", rng.randrange(1, 100_000)) for number in range(rows)]


def write_orders(folder: Folder, number: int, orders: list[Order]) -> None:
    """One file, whole or not there: written beside the source and renamed into it."""
    lines = [json.dumps({"id": key, "customer": customer, "cents": cents}) + "\n" for key, customer, cents in orders]
    temporary = folder.temporary / f"orders-{number:06}.json"
    temporary.write_text("".join(lines))
    temporary.rename(folder.source / temporary.name)


def read_orders(folder: Path, pattern: str) -> Iterator[Order]:
    """The rows of all files of a folder."""
    for path in sorted(folder.glob(pattern)):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            yield row["id"], row["customer"], row["cents"]
