"""`holdfast transactions` without a broker: help, usage, files; the rest is in tests/integration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.storage import open_storage
from holdfast.cli.app import app
from holdfast.cli.transactions import read_properties
from holdfast.connectors.kafka.client.transactions import TransactionRef
from holdfast.connectors.kafka.sink import ids
from holdfast.connectors.kafka.sink.inspect import claims
from holdfast.core.model import Committable
from holdfast.errors import ConfigError

COMMANDS = ("list", "describe", "abort", "commit")


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def prepared(name: str, epoch: int = 0) -> dict[str, Any]:
    return {"transactional_id": name, "producer_id": 1, "epoch": epoch, "rows": 3, "servers": "127.0.0.1:1"}


@pytest.fixture
def log(tmp_path: Path) -> CheckpointLog:
    made = CheckpointLog(open_storage(f"{tmp_path}/holdfast"), "orders")
    made.start()
    return made


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_help_says_what_it_does_and_gives_an_example(command: str) -> None:
    result = run("transactions", *([command] if command else []), "--help")
    assert result.exit_code == 0
    assert "\nEXAMPLE\n    holdfast transactions" in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_location_and_unknown_brokers_are_exit_code_3(log: CheckpointLog, tmp_path: Path, command: str) -> None:
    rest = [] if command == "list" else ["hfk1-orders-a-0123456789ab-0-0-0"]
    assert run("transactions", command, tmp_path / "nothing", *rest).exit_code == 3
    result = run("transactions", command, tmp_path, *rest)
    assert result.exit_code == 3 and "Pass --bootstrap-servers" in result.stderr
    wrong = run("transactions", command, tmp_path, *rest, "--bootstrap-servers", "nonsense")
    assert wrong.exit_code == 3 and "is not host:port" in wrong.stderr


def test_a_damaged_record_is_refused(log: CheckpointLog, tmp_path: Path) -> None:
    log.decide(0, ["a"], [Committable("a", 0, prepared("x"))], timestamp=1, state={})
    path = tmp_path / "holdfast" / "decisions" / "0.0.json"
    path.write_bytes(path.read_bytes()[:-9])
    result = run("transactions", "list", tmp_path)
    assert result.exit_code == 1 and str(path) in result.stderr


def test_transactions_are_known_by_their_whole_identity(log: CheckpointLog) -> None:
    """Rule 2: the id is used again, and the write-ahead sink's handles are no transactions."""
    log.decide(0, ["a", "b"], [Committable("a", 0, prepared("x", 1))], timestamp=1, state={})
    log.record_commit(0, "a", {})
    both = [Committable("a", 0, prepared("x", 2)), Committable("b", 0, {"handle": "wal/1"})]
    log.decide(1, ["a", "b"], both, timestamp=1, state={})
    found = {ref: (claim.checkpoint_id, claim.owed) for ref, claim in claims(log.facts).items()}
    assert found == {TransactionRef("x", 1, 1): (0, False), TransactionRef("x", 1, 2): (1, True)}


def test_ids_of_the_write_ahead_mode_parse_back() -> None:
    text = ids.publisher("my-pipe", "kafka-out.1", "0123456789abcdef", 3)
    assert ids.parse_publisher(text) == ids.PublisherId("my-pipe", "kafka-out.1", "0123456789ab", 3)
    assert ids.parse_publisher(text + "-0") is None and ids.parse(text) is None
    assert ids.parse_publisher("hfw1-a b-c-0123456789ab-0") is None
    assert text.startswith(ids.prefixes("my-pipe")[1])


def test_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# a comment\n! another\n\nsecurity.protocol = SSL\nsasl.password=a=b c\n")
    assert read_properties(path) == {"security.protocol": "SSL", "sasl.password": "a=b c"}
    path.write_text("sasl.username=u\nsasl.password geheim\n")
    with pytest.raises(ConfigError, match="line 2 is not key=value") as caught:
        read_properties(path)
    assert "geheim" not in str(caught.value)


def test_a_properties_file_that_is_not_there(log: CheckpointLog, tmp_path: Path) -> None:
    result = run("transactions", "list", tmp_path, "--config", tmp_path / "none.properties")
    assert result.exit_code == 3 and "none.properties" in result.stderr
