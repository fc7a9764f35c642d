"""A Python function for SQL and a sink class, for own_sink.yaml."""

from pathlib import Path

from pyspark.sql.functions import udf

import holdfast as hf


@udf("string")
def shout(text):
    return text.upper()


class Lines(hf.WriteAheadSink):
    """A line of text for each row. Sent again after a crash, a line can be there twice (W9)."""

    def __init__(self, path):
        super().__init__(committer=hf.FileCheckpointCommitter(f"{path}.marks"))
        self.path = path

    def send_values(self, values, checkpoint_id, timestamp):
        with Path(self.path).open("a") as file:
            for batch in values:
                file.writelines(f"{row['id']} {row['customer']}\n" for row in batch.to_pylist())
        return True
