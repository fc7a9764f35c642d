"""Exactly-once files in under 40 lines: hidden while prepared, renamed when the checkpoint is decided.

Run it: python examples/renamed_files.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import holdfast as hf
from holdfast.testing import audit


class RenamedFiles(hf.TwoPhaseCommitSink):
    """Exactly-once into a folder that all machines reach: JSON lines files; `_...` files are not committed yet."""

    def __init__(self, folder):
        self.folder = Path(folder).absolute()

    def open(self, run):
        self.lineage = run.lineage

    def begin(self, task):
        return (self.folder / f"_{task.token}").open("x", encoding="utf-8")

    def write(self, txn, batch):
        txn.writelines(json.dumps(row, default=str) + "\n" for row in batch.to_pylist())

    def pre_commit(self, txn):
        txn.close()
        sync(txn.name, self.folder)
        return {"version": 1, "token": Path(txn.name).name[1:]}

    def abort(self, txn):
        txn.close()
        Path(txn.name).unlink(missing_ok=True)

    def commit(self, checkpoint_id, committables, tasks):
        hidden = [self.folder / f"_{c['token']}" for c in committables]
        renamed = [path.rename(self.folder / f"{path.name[1:]}.json") for path in hidden if path.exists()]
        sync(self.folder)
        if not all((self.folder / f"{c['token']}.json").exists() for c in committables):
            return hf.Outcome.LOST
        return hf.Outcome.COMMITTED if renamed else hf.Outcome.ALREADY_COMMITTED

    def recover(self, pipeline, generation, decided):
        kept = {c["token"] for committables in decided.values() for c in committables}
        for hidden in self.folder.glob("_*"):
            task = hf.parse_token(hidden.name[1:])
            ours = task and (task.pipeline, task.sink, task.lineage) == (pipeline, self.name, self.lineage)
            if ours and task.generation <= generation and task.token not in kept:
                hidden.unlink(missing_ok=True)


def sync(*paths):
    """Make content and names survive a crash of the machine."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def read(folder):
    """What a reader sees: committed files only."""
    files = [file.read_text(encoding="utf-8") for file in Path(folder).glob("[!_]*.json")]
    return [json.loads(line) for text in files for line in text.splitlines()]


def main():
    spark = hf.session("renamed-files")
    with tempfile.TemporaryDirectory() as folder:
        inbox, out = Path(folder, "in"), Path(folder, "out")
        inbox.mkdir()
        out.mkdir()
        for number in range(3):
            rows = [{"id": 100 * number + n, "name": f"row {n}"} for n in range(100)]
            (inbox / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
        lines = spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", "1").json(str(inbox))
        writer = hf.write_stream(lines, RenamedFiles(out), name="example", checkpoint_location=f"{folder}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        report = audit(range(300), [row["id"] for row in read(out)])
    spark.stop()
    print(f"files delivered: {report}")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
