"""`make dist-check`: build wheel and sdist, install each in an empty environment, and pass the demo there.

So must a query by `format("holdfast")`, which Spark finds by the package that is installed.

What is installed is what users get: without this checkout on the path, with the newest dependencies that pyproject.toml
allows, in a folder that holds nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MINUTES = 15
#: Shows where the package came from, and that what it ships beside its modules is there.
LOOK = "import holdfast, pyspark, sys; print(holdfast.__file__, 'on Spark', pyspark.__version__)"
#: Spark finds the format by the installed package, and workers find it too.
DOOR = """
import pathlib, sqlite3
import holdfast as hf
spark = hf.session("door", conf={"spark.ui.enabled": "false"})
pathlib.Path("in").mkdir()
pathlib.Path("in/1.json").write_text('{"id": 1}\\n{"id": 2}\\n')
writer = spark.readStream.schema("id long").json("in").writeStream.format("holdfast")
here = pathlib.Path.cwd()
writer = writer.options(name="door", checkpointLocation=f"file://{here}/checkpoint", sink="sqlite")
writer.options(path=f"{here}/out.db", table="orders").trigger(availableNow=True).start().awaitTermination()
found = sorted(sqlite3.connect("out.db").execute("SELECT id FROM orders"))
assert found == [(1,), (2,)], found
print('format("holdfast") delivered', len(found), "rows")
"""


def build(folder: Path) -> list[Path]:
    """The sdist, and the wheel, both from this checkout."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True)
    return sorted(folder.glob("holdfast-*"))


def check(package: Path, work: Path) -> None:
    """Install one of them where nothing is, and let the demo kill a streaming job there."""
    environment = work / "environment"
    venv.create(environment, with_pip=True)
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "PYSPARK", "SPARK"))}
    # Nothing of the environment that runs this script: a missing dependency must be missed.
    inherited = [p for p in variables["PATH"].split(os.pathsep) if Path(p).resolve() != Path(sys.executable).parent]
    variables["PATH"] = os.pathsep.join([str(environment / "bin"), *inherited])
    empty = work / "empty"
    empty.mkdir()

    def run(*command: str) -> None:
        done = subprocess.run(
            command, cwd=empty, env=variables, capture_output=True, text=True, check=False, timeout=60 * MINUTES
        )
        print(done.stdout[-3000:], end="")
        if done.returncode:
            raise SystemExit(
                f"dist-check: {package.name}: {' '.join(command)} ended with {done.returncode}\n{done.stderr}"
            )

    run(str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", str(package))
    run(str(environment / "bin" / "python"), "-c", LOOK)
    run(str(environment / "bin" / "holdfast"), "--version")
    run(str(environment / "bin" / "holdfast"), "demo", "--kills", "2")
    run(str(environment / "bin" / "python"), "-c", DOOR)


def main() -> int:
    """Build and check both."""
    parser = argparse.ArgumentParser(prog="make dist-check", description=__doc__)
    parser.add_argument("--keep", type=Path, help="also put wheel and sdist into this folder")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-dist-") as folder:
        packages = build(Path(folder) / "dist")
        kinds = sorted("".join(package.suffixes[-2:]) for package in packages)
        if len(packages) != 2:
            raise SystemExit(f"dist-check: a wheel and an sdist were to be built, not {kinds}")
        for package in packages:
            print(f"dist-check: {package.name}, {package.stat().st_size // 1024} kB", flush=True)
            work = Path(folder) / package.name.replace(".", "-")
            work.mkdir()
            check(package, work)
            shutil.rmtree(work)
            if chosen.keep is not None:
                chosen.keep.mkdir(exist_ok=True)
                shutil.copy(package, chosen.keep)
    print("dist-check: wheel and sdist install in an empty environment; demo and format run there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
