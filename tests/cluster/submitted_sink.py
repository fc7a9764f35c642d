"""A sink that executors have only if it is shipped."""

import sys
from pathlib import Path

import holdfast as hf


class Lines(hf.WriteAheadSink):
    """One file for each part of a checkpoint; its last line says which Python wrote it."""

    def __init__(self, folder, **options):
        super().__init__(**options)
        self.folder = folder

    def send_values(self, values, checkpoint_id, timestamp):
        Path(self.folder).mkdir(exist_ok=True)
        lines = [str(row["id"]) for batch in values for row in batch.to_pylist()]
        path = Path(self.folder, f"{checkpoint_id}-{hf.current_task().subtask}")
        path.write_text("\n".join([*lines, f"{sys.executable} {hf.__file__}"]))
        return True
