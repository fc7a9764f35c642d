"""How a finished file becomes visible: who announces it, and in which order things become durable (F4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.storage import LocalStorage
from holdfast.connectors.files import publish
from holdfast.connectors.files.parts import Folder
from holdfast.connectors.files.publish import Finished, announce, announcements, writing
from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.files.sink import FileSink
from tests.unit.inprocess import Engine

LINEAGE, KINDS = "a" * 32, ("pending", "publish", "ledger")


def finished(folder: Folder, generation: int) -> Finished:
    with writing(folder, 0, "out.csv", LINEAGE, generation) as out:
        out.file.write(b"1\n")
    assert out.finished is not None
    return out.finished


def test_of_two_drivers_that_have_finished_the_same_file_the_first_announces_it(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), "orders", "files")
    first, second = finished(folder, 0), finished(folder, 1)
    assert announce(folder, LINEAGE, 0, [first]) == [first]
    assert announce(folder, LINEAGE, 0, [second]) == [first]
    assert announcements(folder, LINEAGE) == {0: [first]}
    assert folder.exists(folder.hidden(first.hidden))
    assert not folder.exists(folder.hidden(second.hidden)), "nobody shows it, and nobody else would remove it"


def test_each_step_is_durable_before_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, then the announcement, then that it is shown, then the mark: a power cut may come between any two."""
    steps: list[str] = []

    def noting(what: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def done(*arguments: Any) -> Any:
            path = Path(next(a for a in arguments if isinstance(a, str | Path)))
            # Below the folders of each kind there is one for the lineage.
            steps.append(f"{what} {next((f'below {w}' for w in KINDS if w in path.parts[:-1]), path.name)}")
            return do(*arguments)

        return done

    monkeypatch.setattr(publish, "fsync_folder", noting("sync", publish.fsync_folder))
    monkeypatch.setattr(LocalStorage, "create", noting("create", LocalStorage.create))
    monkeypatch.setattr(LocalStorage, "replace", noting("write", LocalStorage.replace))
    engine = Engine(str(tmp_path / "checkpoint"), FileSink(str(tmp_path / "out"), rolling=Rolling(age="0s")))
    engine.run(0, [1])
    announced, marked = steps.index("create below publish"), steps.index("write below ledger")
    assert "sync below pending" in steps[:announced]
    assert {"sync below pending", "sync out"} <= set(steps[announced:marked])
