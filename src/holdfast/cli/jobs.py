"""What `run` and `check` do alike: read a job file or a Python file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.errors import ConfigError
from holdfast.pipeline.help import about

if TYPE_CHECKING:
    from holdfast.pipeline.secrets import Secrets

JobArgument = Annotated[Path, typer.Argument(help="A job file (.yaml), or a Python file with def pipeline(spark).")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Overrules the job file: --set trigger.once=true. May be repeated."
    ),
]
TakeOverOption = Annotated[bool, typer.Option("--take-over", help=about("write_stream", "take_over"))]
KafkaOption = Annotated[bool, typer.Option("--kafka", help="For a Python file: give its Spark the Kafka connector.")]


@dataclass(frozen=True)
class ReadJob:
    """A job that was read and can be built."""

    name: str
    #: has session() and writer(spark, take_over=...)
    built: Any
    secrets: Secrets
    restart: Any = None


def read(job: Path, settings: Sequence[str] | None, *, kafka: bool, keep: bool = True) -> ReadJob:
    """The job of a file; without `keep`, building it writes nothing."""
    from holdfast.pipeline.secrets import Secrets

    if job.suffix == ".py":
        from holdfast.pipeline.python_job import PythonJob

        if settings:
            raise ConfigError("--set is for job files: a Python file reads its own arguments and environment")
        return ReadJob(job.stem, PythonJob(job, kafka=kafka), Secrets())
    from holdfast.pipeline.build import Builder
    from holdfast.pipeline.problems import read_job

    described = read_job(job, tuple(settings or ()))
    made: Any = described.job
    return ReadJob(made.name, Builder(described, keep=keep), described.secrets, made.restart)
