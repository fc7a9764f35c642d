"""Job files: what they may hold, and what is said about what they may not (R1)."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.errors import ConfigError
from holdfast.pipeline.document import JobError
from holdfast.pipeline.help import HELP
from holdfast.pipeline.logs import JsonFormatter
from holdfast.pipeline.model import SINKS, job_model
from holdfast.pipeline.options import options_of
from holdfast.pipeline.problems import Described, read_job
from holdfast.pipeline.secrets import HidingFormatter, Secrets
from holdfast.pipeline.templates import TEMPLATES, find

JOB = """\
name: totals
checkpoint_location: /data/checkpoints/totals
source:
  kafka:
    bootstrap_servers: localhost:9092
    topics: [orders]
    group_id: totals
    start: group_offsets
transform:
  - parsed: SELECT from_json(string(value), 'id long, amount double, at timestamp') AS o FROM source
  - orders: SELECT o.* FROM parsed
    watermark: {column: at, delay: 10 seconds}
  - totals: SELECT window(at, '1 minute') AS minute, sum(amount) AS amount FROM orders GROUP BY 1
sinks:
  - kafka: {bootstrap_servers: localhost:9092, topic: totals, config: {sasl.password: "${KAFKA_PASSWORD}"}}
  - postgres: {dsn: "${SHOP_DSN}", table: totals, mode: upsert, key: [minute]}
  - files: {path: /data/totals, bucket_by: [country, {pattern: "date=%Y"}], rolling: {size: 1MB}}
output_mode: update
trigger: {processing_time: 5 seconds}
spark: {spark.sql.shuffle.partitions: 8}
restart: {attempts: 3, backoff: 1s..2s}
retry: {for_: 10m}
"""
DSN = "postgresql://shop:s3cret-word@localhost/shop"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter22")
    monkeypatch.setenv("SHOP_DSN", DSN)


def read(folder: Path, text: str, *settings: str) -> Described:
    (folder / "job.yaml").write_text(text)
    return read_job(folder / "job.yaml", settings)


def refused(folder: Path, text: str, *settings: str) -> str:
    with pytest.raises(JobError) as caught:
        read(folder, text, *settings)
    return str(caught.value).replace(f"{folder}/", "")


def test_the_file_of_the_design_is_read_and_its_sinks_are_made(tmp_path: Path) -> None:
    job = read(tmp_path, JOB).job
    kafka, postgres, files = (getattr(item, item.kind).build() for item in job.sinks)
    assert isinstance(kafka, hf.KafkaSink) and kafka._config["sasl.password"] == "hunter22"
    assert (postgres.mode, postgres.name) == ("upsert", "postgres-totals")
    assert files.rolling == hf.Rolling(size="1MB")
    assert files.buckets.by == ("country", hf.TimeBucket(pattern="date=%Y"))
    assert job.retry.build() == hf.Retry(for_="10m")
    assert [step.view for step in job.transform] == ["parsed", "orders", "totals"]
    assert job.restart is not None and [job.restart.wait(n) for n in (1, 2, 9)] == [1.0, 2.0, 2.0]


@pytest.mark.contract("R1")
@pytest.mark.parametrize(
    ("wrong", "right", "told"),
    [
        (
            "topc: totals",
            "topic: totals",
            "job.yaml:15:48: sinks.0.kafka: there is no 'topc' here; did you mean 'topic'?",
        ),
        (
            "sise: 1MB",
            "size: 1MB",
            "job.yaml:17:87: sinks.2.files.rolling: there is no 'sise' here; did you mean 'size'?",
        ),
        (
            "output_mod: up",
            "output_mode: up",
            "job.yaml:18:1: there is no 'output_mod' here; did you mean 'output_mode'?",
        ),
        (
            "start: erliest",
            "start: group_offsets",
            "job.yaml:8:12: source.kafka.start: input should be 'group_offsets'",
        ),
        ("attempts: some", "attempts: 3", "job.yaml:21:21: restart.attempts: input should be a valid integer"),
        ("backoff: 9s..2s", "backoff: 1s..2s", "job.yaml:21:33: restart.backoff: backoff must be two durations"),
        ("dely: 10", "delay: 10", "transform.1.watermark: there is no 'dely' here; did you mean 'delay'?"),
        ("  - rows:\n      kafka:", "  - kafka:", "sinks.0: there is no 'rows' here; allowed: "),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_place(tmp_path: Path, wrong: str, right: str, told: str) -> None:
    assert told in refused(tmp_path, JOB.replace(right, wrong, 1))


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    text = JOB.replace("topic: totals", "topc: totals").replace("table: totals,", "")
    told = refused(tmp_path, text).splitlines()
    assert len(told) == 2
    assert told[1] == "job.yaml:16:15: sinks.1.postgres: 'table' is missing"
    result = CliRunner().invoke(app, ["check", str(tmp_path / "job.yaml")])
    lines = result.stderr.splitlines()
    assert (result.exit_code, len(lines)) == (3, 2) and lines[1].endswith(
        "job.yaml:16:15: sinks.1.postgres: 'table' is missing"
    )


def test_what_is_not_yaml_or_stands_twice_is_told_with_its_place(tmp_path: Path) -> None:
    assert refused(tmp_path, "name: [a\nb: }").startswith("job.yaml:2:2: this is not YAML")
    assert refused(tmp_path, "name: a\nname: b\n") == "job.yaml:2:1: 'name' stands here a second time"
    assert "is a mapping" in refused(tmp_path, "- a\n")
    with pytest.raises(JobError, match="cannot be read"):
        read_job(tmp_path / "nothing.yaml")


def test_one_source_one_sink_kind_and_one_trigger(tmp_path: Path) -> None:
    assert "give source, or sources" in refused(tmp_path, JOB, "source=null")
    assert "give one of processing_time, available_now, once" in refused(tmp_path, JOB, "trigger={}")
    two = "{processing_time: 1 second, once: true}"
    assert "not processing_time and once" in refused(tmp_path, JOB, f"trigger={two}")
    assert "give one of kafka, postgres" in refused(tmp_path, JOB, "sinks=[{}]")
    assert "sinks: list should have at least 1 item" in refused(tmp_path, JOB, "sinks=[]")


def test_a_sink_can_have_its_own_rows_and_bad_rows_a_sink_of_their_own(tmp_path: Path) -> None:
    letters = "dead_letters={sink: {sqlite: {path: /data/bad.db, table: bad}}, max_rows: 5}"
    job = read(tmp_path, JOB, "sinks.0.where=amount > 10", "sinks.0.select=[id, amount]", letters).job
    assert (job.sinks[0].where, job.sinks[0].select, job.sinks[1].where) == ("amount > 10", ["id", "amount"], None)
    assert (job.dead_letters.sink.kind, job.dead_letters.max_rows) == ("sqlite", 5)
    assert "there is no 'rejct' here; did you mean 'reject'?" in refused(tmp_path, JOB, "sinks.0.rejct=true")


def test_set_overrules_the_file(tmp_path: Path) -> None:
    job = read(tmp_path, JOB, "trigger={available_now: true}", "sinks.0.kafka.topic=other", "spark.x.y=2").job
    assert job.bounded and job.sinks[0].kafka.topic == "other"
    assert "must be key=value" in refused(tmp_path, JOB, "trigger")
    assert "must be a number below 3" in refused(tmp_path, JOB, "sinks.7.kafka.topic=x")


def test_secrets_come_from_the_environment_and_from_files_and_are_shown_nowhere(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("tiptop-secret\n")
    described = read(tmp_path, JOB.replace("${KAFKA_PASSWORD}", "${file:password}"))
    assert described.job.sinks[0].kafka.config == {"sasl.password": "tiptop-secret"}
    shown = f"{described!r} {described.job!r} {described.job.sinks!r} {described.secrets!r} {described.job}"
    assert "tiptop" not in shown and "s3cret" not in shown
    assert described.secrets.hide(f"cannot log in to {DSN} with tiptop-secret!") == "cannot log in to *** with ***!"
    # a value that is wrong is told as it stands in the file
    told = refused(tmp_path, JOB.replace("mode: upsert", 'lock_timeout: "${KAFKA_PASSWORD}"'))
    assert "hunter22" not in told and "${KAFKA_PASSWORD}" in told


def test_references_that_lead_nowhere_are_told_with_their_place(tmp_path: Path) -> None:
    assert "job.yaml:16:21: sinks.1.postgres.dsn: the environment variable NO_SUCH is not set" in refused(
        tmp_path, JOB.replace("SHOP_DSN", "NO_SUCH")
    )
    assert "the file /no/such cannot be read" in refused(tmp_path, JOB.replace("SHOP_DSN", "file:/no/such"))
    assert "must be ${NAME}" in refused(tmp_path, JOB.replace("SHOP_DSN", "a b"))
    assert read(tmp_path, JOB.replace("${SHOP_DSN}", "$${SHOP_DSN}")).job.sinks[1].postgres.dsn == "${SHOP_DSN}"
    assert read(tmp_path, JOB.replace("${SHOP_DSN}", "${NO_SUCH:-plain}")).job.sinks[1].postgres.dsn == "plain"


def test_names_and_addresses_from_the_environment_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "/mnt/data-7")
    described = read(tmp_path, JOB.replace("/data/checkpoints", "${WHERE}"))
    assert described.secrets.hide("checkpoints in /mnt/data-7/totals") == "checkpoints in /mnt/data-7/totals"


def test_log_lines_hide_secrets_and_say_pipeline_checkpoint_and_sink() -> None:
    secrets = Secrets(["hunter22", "ab"])
    formatter = HidingFormatter(JsonFormatter("totals"), secrets)
    record = logging.LogRecord(
        "holdfast", logging.WARNING, "f", 1, "commit of checkpoint %d: %s ab cab", (7, "hunter22"), None
    )
    record.threadName = "holdfast-totals-kafka-out"
    line = json.loads(formatter.format(record))
    assert line["message"] == "commit of checkpoint 7: *** *** cab"
    assert (line["pipeline"], line["checkpoint"], line["sink"], line["level"]) == ("totals", 7, "kafka-out", "warning")
    told = "over 80 %% after %.1f s: checkpoint %d, sink %s: no answer"
    record = logging.LogRecord("holdfast", logging.WARNING, "f", 1, told, (1.5, 8, "postgres-orders"), None)
    line = json.loads(formatter.format(record))
    assert (line["checkpoint"], line["sink"]) == (8, "postgres-orders")
    record = logging.LogRecord("holdfast", logging.INFO, "f", 1, "a sink is away", (), None)
    assert "sink" not in json.loads(formatter.format(record))


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_is_a_job_file_that_says_all_it_needs(tmp_path: Path, template: str) -> None:
    job = read(tmp_path, find(template)).job
    assert all(getattr(item, item.kind).build() is not None for item in job.sinks)


def test_templates_and_examples_leave_it_to_the_default_when_rows_are_seen() -> None:
    """Which is within a minute: what a newcomer copies must not undo it."""
    examples = Path(__file__).parents[2].joinpath("examples", "jobs").glob("*.yaml")
    texts = [*(find(template) for template in TEMPLATES), *(file.read_text() for file in examples)]
    assert not [text for text in texts if "rolling" in text]


def test_a_template_that_does_not_exist_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'kafka-to-postgres'"):
        find("kafka-to-postgre")


def test_the_schema_knows_every_option_of_the_constructors() -> None:
    schema = job_model().model_json_schema(by_alias=True)
    assert {"name", "checkpoint_location", "sinks", "retry", "drain_timeout", "delivery"} <= set(schema["properties"])
    for options in SINKS.values():
        shown = schema["$defs"][options.__name__]["properties"]
        expected = {option.name for option in options_of(options.target)} - {"committer"}
        assert set(shown) == expected
    assert set(schema["$defs"]["Step"]["properties"]) == {"watermark"}


@pytest.mark.parametrize("name", HELP)
def test_every_option_of_a_job_file_has_its_words(name: str) -> None:
    homes = {options.target.__name__: options.target for options in SINKS.values()}
    target = homes.get(name) or getattr(hf, name)
    elsewhere = {"df", "sinks", "take_over", "spark", "start", "committer", "dead_letters"}
    assert {option.name for option in options_of(target, elsewhere)} <= set(HELP[name])
    assert all(HELP[name].values())


class TestNew:
    """`holdfast new`: a job file, and with --compose-free a script that starts the servers it needs."""

    def run(self, *arguments: object) -> tuple[int, dict[str, object]]:
        done = CliRunner().invoke(app, ["new", *map(str, arguments), "--json"])
        return done.exit_code, json.loads(done.stdout) if done.exit_code == 0 else {}

    def test_a_script_for_the_servers_beside_the_job_file(self, tmp_path: Path) -> None:
        job, script = tmp_path / "job.yaml", tmp_path / "servers.py"
        code, said = self.run("kafka-to-postgres", "--to", job, "--compose-free")
        assert (code, said["written"]) == (0, [str(job), str(script)])
        text = script.read_text()
        compile(text, str(script), "exec")
        assert 'main(kafka=["orders"], postgres="SHOP_DSN")' in text
        assert "python servers.py holdfast run job.yaml" in text

    def test_nothing_is_written_over_nor_half(self, tmp_path: Path) -> None:
        (tmp_path / "servers.py").write_text("mine")
        assert self.run("kafka-to-files", "--to", tmp_path / "job.yaml", "--compose-free")[0] == 3
        assert (tmp_path / "servers.py").read_text() == "mine" and not (tmp_path / "job.yaml").exists()

    def test_a_template_that_needs_no_servers_gets_no_script(self, tmp_path: Path) -> None:
        assert self.run("rate-to-stdout", "--to", tmp_path / "job.yaml", "--compose-free")[0] == 0
        assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]
