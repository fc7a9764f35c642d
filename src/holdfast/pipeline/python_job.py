"""A pipeline in a Python file, run as a job file is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from pyspark.sql import SparkSession

from holdfast.errors import ConfigError
from holdfast.spark.private import pickle_by_value
from holdfast.spark.session import session
from holdfast.spark.stream import HoldfastWriter


class PythonJob:
    """`job.py`: `def pipeline(spark) -> DataStreamWriter`, and `def session()` if it wants a Spark of its own."""

    def __init__(self, path: Path, *, kafka: bool = False) -> None:
        self.path, self._kafka = path, kafka
        self._module = self._load()

    def _load(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location(self.path.stem, self.path)
        if spec is None or spec.loader is None or not self.path.is_file():
            raise ConfigError(f"{self.path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(self.path.resolve().parent))
        sys.modules[self.path.stem] = module
        spec.loader.exec_module(module)
        pickle_by_value(module)  # tasks cannot import it
        if not callable(getattr(module, "pipeline", None)):
            raise ConfigError(f"{self.path} needs def pipeline(spark), which returns hf.write_stream(...)")
        return module

    def session(self) -> SparkSession:
        """Its own, or ours."""
        own = getattr(self._module, "session", None)
        made: SparkSession = own() if callable(own) else session(self.path.stem, kafka=self._kafka)
        return made

    def writer(self, spark: SparkSession, *, take_over: bool = False) -> HoldfastWriter:
        """What its function returns."""
        if take_over:
            raise ConfigError("--take-over is for job files: in Python say write_stream(..., take_over=True)")
        made = self._module.pipeline(spark)
        if not isinstance(made, HoldfastWriter):
            raise ConfigError(
                f"{self.path}: pipeline(spark) must return hf.write_stream(...), not {type(made).__name__}"
            )
        return made
