"""The scale benchmark counts what it says, and the profile sorts frames by what they belong to."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from bench import profile, scale, scale_plot
from bench.sinks import Nowhere


def test_requests_are_those_of_one_checkpoint(tmp_path: Path) -> None:
    found = scale.requests(tmp_path / "c", [Nowhere()], 10)
    assert 1 <= found["put"] < 20, found


def test_the_time_of_tasks_is_taken_off(tmp_path: Path) -> None:
    class Slow(Nowhere):
        def write(self, txn, batch):
            scale.time.sleep(0.3)

    assert scale.Pipeline(tmp_path / "c", [Slow()]).run(2) < 300


def test_a_backlog_is_delivered_by_the_next_start(tmp_path: Path) -> None:
    start, rate = scale.backlog(tmp_path / "b", 5)
    assert start > 0 and rate > 0


def test_the_slope_is_that_of_the_widest() -> None:
    found = {(1, 1): [5.0], (1, 100): [10.0, 12.0, 11.0], (1, 1000): [101.0], (8, 16): [900.0]}
    assert scale.slope(found) == pytest.approx(0.1)


def test_the_picture(tmp_path: Path) -> None:
    scale_plot.plot({(1, 1): [5.0], (1, 16): [7.0], (2, 16): [9.0]}, {(1, 1): [50.0]}, 16, tmp_path / "a" / "s.png")
    assert (tmp_path / "a" / "s.png").read_bytes().startswith(b"\x89PNG")


def test_a_stack_belongs_to_its_deepest_frame_that_is_known() -> None:
    stacks = Counter(
        {
            "java.nio.X.put;org.apache.arrow.vector.VarBinaryVector.set;org.apache.kafka.clients.Y.poll": 6,
            "org.apache.kafka.clients.consumer.Z.parse;org.apache.spark.sql.kafka010.W.get": 3,
            "java.lang.Thread.run": 1,
        }
    )
    shares = dict(profile.share(stacks, profile.JAVA))
    assert shares["Arrow: rows into vectors and messages"] == 0.6
    assert shares["Kafka's consumer: fetch and parse"] == 0.3 and shares["else"] == 0.1


def test_py_spys_stacks_are_turned_round() -> None:
    assert profile.python_stacks("main (a.py:1);add (digest.py:2) 5\n") == {"add (digest.py:2);main (a.py:1)": 5}
    assert dict(profile.share(profile.python_stacks("m (a.py:1);add (digest.py:2) 5"), profile.PYTHON)) == {
        "digest of rows": 1.0
    }


def test_a_thread_that_waits_is_not_counted() -> None:
    assert profile.python_stacks("main (a.py:1);read (libc.so.6) 60\nmain (a.py:1);memcpy (libc.so.6) 2") == {
        "memcpy (libc.so.6);main (a.py:1)": 2
    }


def test_threads_and_children_are_read_from_the_system() -> None:
    assert sum(profile.threads_of(os.getpid()).values()) > 0
    assert profile.children(os.getpid(), "no such name") == []
