"""`make profile`: where the CPU of a steady Kafka to Kafka query goes, as a table: JVM, Python workers, broker.

One run of `KafkaSink`, profiled while it is steady: Java's flight recorder looks at the JVM's threads, py-spy at the
Python workers, and `/proc` counts the CPU seconds of every thread of the JVM by its name. Nothing here is judged.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.kafka_job import ALL, TWO_PHASE, WRITE_AHEAD
from bench.kafka_measure import cpu_of
from bench.kafka_topics import Topics, some_rows
from bench.processes import children
from bench.report import ROOT
from holdfast.testing.servers.kafka import KafkaBroker

#: What a Java frame belongs to: the first one from the top of a stack that is in this list counts.
JAVA = (
    ("Arrow: rows into vectors and messages", r"org\.apache\.arrow|ArrowWriter|ArrowConverters"),
    ("to and from Python workers", r"PythonRunner|PythonRDD|PythonWorker|DirectByteBufferOutputStream"),
    ("Kafka's consumer: fetch and parse", r"org\.apache\.kafka\.(clients|common)"),
    ("Spark's Kafka source: records into rows", r"org\.apache\.spark\.sql\.kafka010"),
    ("Spark's plan: generated code, projections", r"GeneratedClass|GeneratedIterator|WholeStageCodegen|UnsafeRow"),
)
#: The same for Python; native code is told by its library.
PYTHON = (
    ("librdkafka: sending (its own threads)", r"rd_kafka_thread_main|rd_kafka_broker"),
    ("librdkafka: taking rows", r"\bproduce \(|rd_kafka_produce"),
    ("digest of rows", r"digest\.py"),
    ("messages, partitions", r"producer/arrow\.py|partitioner\.py"),
    ("reading Arrow batches from Spark", r"read_record_batch|serializers\.py|\bread_with_length|\bload_stream"),
    ("collecting garbage", r"spare_collector|_freeze"),
)
_NUMBER = re.compile(r"[-#\s]*\d+$")
#: py-spy takes a thread that waits in native code for one that runs.
_WAITING = re.compile(r"^(read|poll|epoll_wait|recv|select|futex\S*|pthread_cond_\S*|nanosleep|clock_nanosleep) \(libc")


def share(stacks: Counter[str], groups: tuple[tuple[str, str], ...]) -> list[tuple[str, float]]:
    """How much of the samples belongs to each group, the largest first; a stack's deepest frame that matches counts."""
    found: Counter[str] = Counter()
    for stack, count in stacks.items():
        for frame in stack.split(";"):
            name = next((name for name, pattern in groups if re.search(pattern, frame)), None)
            if name is not None:
                found[name] += count
                break
        else:
            found["else"] += count
    total = sum(found.values()) or 1
    return [(name, count / total) for name, count in found.most_common()]


def java_stacks(recording: Path, jfr: str, since: float) -> Counter[str]:
    """Stacks of threads that ran from then on, deepest frame first, from a flight recording."""
    told = subprocess.run(
        [jfr, "print", "--json", "--stack-depth", "64", "--events", "jdk.ExecutionSample", str(recording)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    stacks: Counter[str] = Counter()
    for event in json.loads(told)["recording"]["events"]:
        if datetime.datetime.fromisoformat(event["values"]["startTime"]).timestamp() < since:
            continue
        frames = (event["values"].get("stackTrace") or {}).get("frames") or []
        names = [f"{f['method']['type']['name']}.{f['method']['name']}" for f in frames]
        stacks[";".join(name.replace("/", ".") for name in names)] += 1
    return stacks


def python_stacks(raw: str) -> Counter[str]:
    """Of py-spy's raw form, `outermost;...;deepest count`, deepest frame first; of threads that do not wait."""
    stacks: Counter[str] = Counter()
    for line in raw.splitlines():
        frames, _, count = line.rpartition(" ")
        stack = ";".join(reversed(frames.split(";")))
        if _WAITING.match(stack) is None:
            stacks[stack] += int(count)
    return stacks


def threads_of(pid: int) -> dict[str, float]:
    """CPU seconds of a process by the names of its threads, without their numbers."""
    used: Counter[str] = Counter()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text.rpartition(")")[2].split()
        used[_NUMBER.sub("", name)] += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return dict(used)


def profile(options: argparse.Namespace, folder: Path) -> list[str]:
    """Run, look, and tell."""
    home = os.environ.get("JAVA_HOME")
    jfr = shutil.which("jfr", path=f"{home}/bin" if home else None)
    if jfr is None:
        raise SystemExit("no jfr beside java: a whole JDK has one (Debian: openjdk-17-jdk-headless)")
    spy = Path(sys.executable).with_name("py-spy")
    recording, raw = folder / "java.jfr", folder / "python.txt"
    broker = KafkaBroker(folder / "broker")
    broker.start()
    try:
        topics = Topics(broker.bootstrap)
        source, target = topics.make("in"), topics.make("out")
        topics.fill(source, some_rows(options.rows))
        job = [ALL, options.way, broker.bootstrap, source, target, str(options.rows), str(options.batch)]
        told = f"-XX:StartFlightRecording:filename={recording},settings=profile,dumponexit=true -Xlog:disable"
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {told}".strip()}
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.kafka_job", *job, str(folder / "run")], env=environment,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        # Steady from a third on: Java has compiled by then.
        while topics.ends(target) < options.rows / 3:
            if process.poll() is not None:
                raise SystemExit("the query ended before it was steady")
            time.sleep(0.2)
        [java] = children(process.pid, "java")
        daemon = min(children(java, "python"))
        since = time.time()
        seen, before, threads = topics.ends(target), cpu_of(process.pid, broker.pid), threads_of(java)
        command = [str(spy), "record", "--pid", str(daemon), "--subprocesses", "--native", "--threads"]
        spying = subprocess.Popen(
            [*command, "--duration", str(options.seconds), "--rate", "97", "--format", "raw", "--output", str(raw)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        spying.wait()
        rows = (topics.ends(target) - seen) / 1e6
        after, later = cpu_of(process.pid, broker.pid), threads_of(java)
        process.wait()
    finally:
        broker.stop()
    lines = [f"{options.way}, {rows:.1f} million rows in {options.seconds} s", "", "CPU seconds a million rows"]
    lines += [f"  {(after[group] - before[group]) / rows:6.2f}  {group}" for group in before]
    lines += ["", "JVM, CPU seconds a million rows by thread"]
    spent = sorted(((later[n] - threads.get(n, 0.0)) / rows, n) for n in later)
    lines += [f"  {seconds:6.2f}  {name}" for seconds, name in reversed(spent) if seconds >= 0.01]
    for title, stacks, groups in (
        ("JVM, threads that ran (flight recorder)", java_stacks(recording, jfr, since), JAVA),
        ("Python workers (py-spy)", python_stacks(raw.read_text()), PYTHON),
    ):
        lines += ["", title, *(f"  {part:6.1%}  {name}" for name, part in share(stacks, groups))]
        lines += ["  deepest frames"]
        deepest: Counter[str] = Counter()
        for stack, count in stacks.items():
            deepest[stack.partition(";")[0]] += count
        total = sum(deepest.values()) or 1
        lines += [f"  {count / total:6.1%}    {frame}" for frame, count in deepest.most_common(options.frames)]
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=[TWO_PHASE, WRITE_AHEAD], default=TWO_PHASE)
    parser.add_argument("--rows", type=int, default=12_000_000, help="rows of the run (default 12 million)")
    parser.add_argument("--batch", type=int, default=500_000, help="rows of a micro-batch (default 500,000)")
    parser.add_argument("--seconds", type=int, default=8, help="how long the workers are looked at (default 8)")
    parser.add_argument("--frames", type=int, default=12, help="deepest frames to list (default 12)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="holdfast-profile-") as folder:
        lines = profile(options, Path(folder))
    print("\n".join(lines))
    kept = ROOT / "bench" / "results" / "details" / f"profile-{options.way}.txt"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
