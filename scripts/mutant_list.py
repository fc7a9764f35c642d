"""What `make mutants` breaks, one at a time, and the tests that must notice: the protocol, the kernel, the sinks.

What came later is in mutant_rooms.py.
"""

from __future__ import annotations

from mutant import CRASH, FAILURES, mutant
from mutant_rooms import ROOMS

#: The fence, the decision, the log.
PROTOCOL = (
    mutant(
        "the fence: older generations may go on deciding",
        "core/fence.py",
        "return all(generation <= own for generation in claimed)",
        "return True",
    ),
    mutant(
        "the fence: slots of older generations are left open",
        "checkpoint/log.py",
        "for slot in fence.slots_to_fence(self.generation, generations, slots, aborted):",
        "for slot in []:",
        "tests/unit/test_log.py",
    ),
    mutant(
        "the fence, both halves, in real processes",
        "checkpoint/log.py",
        "self.ensure_not_fenced()\n kind, checkpoint_id",
        "self._next = Slot(self.generation + 1000, self._next.index)\n kind, checkpoint_id",
        f"{CRASH}[09-sqlite-before-decision]",
    ),
    mutant(
        "the fsync of a record",
        "checkpoint/storage.py",
        "os.fsync(file.fileno())\n if exclusive:",
        "pass\n if exclusive:",
        "tests/unit/test_storage.py",
    ),
    mutant(
        "the fsync of a folder",
        "checkpoint/storage.py",
        "        os.fsync(fd)\n",
        "        pass\n",
        "tests/unit/test_storage.py",
    ),
    mutant(
        "the decision: nothing durable is written before the commit",
        "checkpoint/log.py",
        "created = self._create(self._slots.name(self._next), kind, records.new_nonce(), body)",
        "created = True",
        f"{CRASH}[03-sqlite-kill]",
    ),
    mutant(
        "the sweep: undecided work stays",
        "sinks/wal.py",
        'discard(storage, [{"handle": path} for path in removed])',
        "pass",
        f"{CRASH}[02-write-ahead-lost]",
    ),
    mutant(
        "the replay: a decided batch is written again",
        "checkpoint/micro_batch.py",
        "if checkpoint_id in self._log.facts.decided:",
        "if False:",
        f"{CRASH}[06-write-ahead-error]",
    ),
    mutant(
        "the replay: a replayed batch is not run",
        "checkpoint/micro_batch.py",
        "batch.drain()",
        "pass",
        "tests/crash/test_stateful.py",
    ),
)

#: After the decision: the delivery loops, and who waits for them.
KERNEL = (
    mutant("loops: nobody looks for a newer driver", "checkpoint/delivery.py", "self._look_for_fence(began)", "pass"),
    mutant(
        "loops: a sink commits its newest checkpoint first",
        "checkpoint/delivery.py",
        "for n in owed(self._log.facts, self.sink.name))",
        "for n in reversed(owed(self._log.facts, self.sink.name)))",
    ),
    mutant(
        "loops: a batch does not wait for a sink that may not lag",
        "checkpoint/micro_batch.py",
        "until(lambda d: d.sink.may_lag or d.done_through(checkpoint_id - (1 if d.sink.overlaps else 0)))",
        "self._waiting.raise_failure()",
    ),
    mutant(
        "loops: a sink that overlaps may be many checkpoints behind",
        "checkpoint/micro_batch.py",
        "(1 if d.sink.overlaps else 0)",
        "(9 if d.sink.overlaps else 0)",
    ),
    mutant(
        "loops: what cannot help is tried again",
        "checkpoint/delivery.py",
        "if permanent(error) or (not self.sink.may_lag",
        "if (not self.sink.may_lag",
    ),
    mutant(
        "loops: a sink that may lag gives up",
        "checkpoint/delivery.py",
        "(not self.sink.may_lag and failing >= self._retry.seconds)",
        "(failing >= self._retry.seconds)",
    ),
    mutant(
        "loops: a commit without its record is sent again",
        "checkpoint/delivery.py",
        "if self._unrecorded is not None and self._unrecorded[0] == number:",
        "if False:",
    ),
    mutant(
        "loops: sinks are told of a checkpoint that another still owes",
        "checkpoint/delivery.py",
        "if number not in missing:",
        "if True:",
    ),
    mutant(
        "still_prepared is not asked", "checkpoint/prepare.py", "self._ask_again(checkpoint_id, ", "(lambda *_: 0)("
    ),
    mutant(
        "findings are not written",
        "checkpoint/delivery.py",
        "record_finding(self._log, action, error)",
        "pass",
    ),
    mutant("a loop's failure is not raised", "checkpoint/waiting.py", "raise self.failure\n", "return\n"),
    mutant(
        "the end of a bounded run does not drain",
        "checkpoint/micro_batch.py",
        "if self._drain_timeout is not None:",
        "if False:",
    ),
    mutant(
        "take-over: what was sent and not recorded is sent again",
        "checkpoint/sinkset.py",
        "check_take_over(self._log, error)",
        "pass",
        "tests/unit/test_take_over.py",
    ),
    mutant(
        "sweeps: a sink that may lag undoes work of its own generation beside tasks",
        "checkpoint/sweeps.py",
        "self._recover(sink, self._log.generation - 1)",
        "self._recover(sink, self._log.generation)",
        "tests/unit/test_hanging_sweeps.py",
    ),
    mutant(
        "sweeps: tasks run beside one that hangs",
        "checkpoint/micro_batch.py",
        "raise hanging from error",
        "pass",
        "tests/unit/test_hanging_sweeps.py",
    ),
    mutant("a ledger behind the log is accepted", "core/recovery.py", "return LedgerVerdict.BEHIND", "pass"),
    mutant(
        "nobody says what is committed",
        "checkpoint/log.py",
        "found[sink] = Committed(number, decided.timestamp, subtasks)",
        "pass",
    ),
    mutant(
        "an endpoint accepted as restored is refused for ever",
        "checkpoint/log.py",
        "and mine and number > accepted.get(sink, -1)",
        "and mine",
    ),
    mutant(
        "group offsets lead a sink that lags",
        "core/recovery.py",
        "return missing[0].checkpoint_id - 1",
        "return 1 << 60",
    ),
    mutant(
        "a failure between batches looks like a stop",
        "spark/private/java.py",
        "query._jsq.streamingQuery().queryExecutionThread().interrupt()",
        "query._jsq.stop()",
        FAILURES,
    ),
    mutant(
        "a stop does not wait for the checkpoint under way",
        "spark/query.py",
        "self._wait_for_checkpoint(running, began + min(CURRENT, timeout))",
        "pass",
        FAILURES,
    ),
)

#: Repair, take-over, resolve.
WAYS_OUT = (
    mutant(
        "repair: rows that are not in the replay are produced all the same",
        "checkpoint/repair.py",
        "if not plan.possible and not forced:",
        "if False:",
        "tests/unit/test_repair.py",
    ),
    mutant(
        "repair: what was produced is not compared with the replay",
        "checkpoint/repair.py",
        "equal = written == {(r.subtask, r.rows, r.digest) for r in expected}",
        "equal = True",
        "tests/unit/test_repair.py",
    ),
    mutant(
        "repair: subtasks are matched by their number",
        "core/repair.py",
        "free.get((committable.rows, committable.digest), [])",
        "[committable.subtask] if committable.subtask in seen else []",
        "tests/unit/test_repair.py",
    ),
    mutant(
        "take-over: the old lineage stays",
        "checkpoint/sinkset.py",
        "self._log.replace_lineage(error.ledger if isinstance(error, ForeignLineageError) else ())",
        "pass",
    ),
    mutant(
        "take-over: nothing is asked, every other location may take a name",
        "checkpoint/sinkset.py",
        "if not may_take_over:",
        "if False:",
        "tests/unit/test_coordinator_refusals.py",
    ),
    mutant(
        "resolve: an order that cannot be carried out is taken",
        "checkpoint/resolve.py",
        "committed = engine_position(location)[1]",
        "committed = None",
        "tests/unit/test_resolve.py",
    ),
    mutant(
        "resolve: rows that are given up stay owed",
        "checkpoint/resolve.py",
        "[] if how == PRODUCE_ANYWAY else ",
        "[] if True else ",
        "tests/unit/test_resolve.py",
    ),
    mutant(
        "repair: what Spark does not replay any more is waited for",
        "checkpoint/repair.py",
        "if beyond or not (forced",
        "if not (forced",
        "tests/unit/test_repair.py",
    ),
    mutant(
        "repair: a replayed subtask that is committed already is produced again",
        "core/repair.py",
        "for committable in sorted(kept, key=lambda c: c.subtask):",
        "for committable in ():",
        "tests/unit/test_repair.py",
    ),
    mutant(
        "take-over: one that died half way is not finished",
        "checkpoint/sinkset.py",
        "if self._log.taking_over:",
        "if False:",
        "tests/unit/test_take_over.py",
    ),
)

#: What each shipped sink rests on.
SINKS = (
    mutant(
        "SQLite: a repeated commit inserts again",
        "connectors/sqlite/*.py",
        "if ledger.get(run.lineage, -1) >= self.checkpoint_id:",
        "if False:",
        f"{CRASH}[05-sqlite-lost]",
    ),
    mutant(
        "SQLite: the ledger row is not written",
        "connectors/sqlite/*.py",
        "connection.execute(_ADD_TO_LEDGER, row)",
        "pass",
        f"{CRASH}[05-sqlite-lost]",
    ),
    mutant(
        "write-ahead: nothing is marked as delivered",
        "sinks/write_ahead.py",
        "committer.commit_checkpoint(subtask, self.checkpoint_id)",
        "pass",
        "tests/unit/test_coordinator_write_ahead.py",
    ),
    mutant(
        "write-ahead: the committer is not asked",
        "sinks/write_ahead.py",
        "if committer.is_checkpoint_committed(subtask, self.checkpoint_id):",
        "if False:",
        "tests/unit/test_coordinator_write_ahead.py",
    ),
    mutant(
        "Kafka: what timed out is taken for committed",
        "connectors/kafka/sink/two_phase.py",
        'lost = [c for c in unsettled if not committed_by_mark(checkpoint_id, c, found[c["mark"]])]',
        "lost = []",
        f"{CRASH}[10-kafka-both-some-lost]",
    ),
    mutant(
        "Kafka: undecided transactions stay open",
        "connectors/kafka/sink/two_phase.py",
        "self._abort_all(undecided)",
        "pass",
        f"{CRASH}[02-11-kafka-both-undecided]",
    ),
    mutant(
        "Kafka write-ahead: the mark is not looked at",
        "connectors/kafka/sink/write_ahead.py",
        "if publisher.published <= self.checkpoint_id:",
        "if True:",
        f"{CRASH}[01-05-06-07-kafka-both-one-after-the-other]",
    ),
    mutant(
        "a batch that a stop cancels is not undone by a sink that needs a moment",
        "checkpoint/sweeps.py",
        "seconds, over = min(seconds, STOPPED), lambda: False",
        "pass",
        "tests/unit/test_hanging_sweeps.py::test_s6_a_batch_that_a_stop_cancels_is_undone_unless_the_endpoint_hangs",
    ),
    mutant(
        "Kafka write-ahead: the mark is read before the id is owned",
        "connectors/kafka/sink/write_ahead.py",
        "producer.initialise()\n "
        'group = ids.mark_group(publisher_id, handles[0].get("lineage", self.run.lineage))\n '
        "# Stable: what our predecessor committed counts, and its mark may be on its way. It cannot wait for long:\n "
        "# nobody else writes this group, and whatever the publisher had open is ended by now.\n "
        "found = self._read(group)",
        'group = ids.mark_group(publisher_id, handles[0].get("lineage", self.run.lineage))\n '
        "found = self._read(group)\n "
        "producer.initialise()",
        "tests/integration/test_kafka_modes.py::TestWriteAhead::"
        "test_rule_9_what_another_worker_publishes_until_ours_owns_the_id_is_seen_by_it",
    ),
    mutant(
        "PostgreSQL ledger: a repeated commit inserts again",
        "connectors/postgres/ledger.py",
        "RAISE EXCEPTION 'the ledger forbids this commit' USING ERRCODE = '{REFUSED}';",
        "NULL;",
        f"{CRASH}[05-postgres-kill]",
    ),
    mutant(
        "PostgreSQL two-phase: the ledger row is not in the transaction",
        "connectors/postgres/two_phase.py",
        "self._execute(self._ledger.add(self._run, self._task.checkpoint_id, self._rows, self._gid))",
        "pass",
        f"{CRASH}[04-postgres-two-phase-kill]",
    ),
    mutant(
        "PostgreSQL two-phase: undecided transactions stay prepared",
        "connectors/postgres/two_phase.py",
        '_end(connection, "ROLLBACK", text)',
        "pass",
        f"{CRASH}[11-stores-undecided]",
    ),
    mutant(
        "PostgreSQL two-phase: what is gone is taken for committed",
        "connectors/postgres/two_phase.py",
        "in_doubt = gone if known.get(run.lineage, -1) <= checkpoint_id else []",
        "in_doubt = []",
        "tests/integration/test_postgres_sink.py",
    ),
    mutant(
        "Cassandra: rows carry the time of their sending",
        "connectors/cassandra/sink.py",
        "timestamp * 1000, consistency=",
        "__import__('time').time_ns() // 1000, consistency=",
        f"{CRASH}[05-cassandra-kill]",
    ),
    mutant(
        "Cassandra: write times do not grow from checkpoint to checkpoint",
        "connectors/cassandra/sink.py",
        'max(handle["timestamp"], self._timestamp + 1)',
        'handle["timestamp"]',
        "tests/integration/test_cassandra_sink.py",
    ),
    mutant(
        "kafka: marks that are gone while the query runs are written over",
        "connectors/kafka/sink/options.py",
        "if self._run is not None and self._known.due:",
        "if False:",
        "tests/integration/test_kafka_after_decision.py",
    ),
    mutant(
        "kafka: a partition's first row is not waited for",
        "connectors/kafka/producer/rdkafka.py",
        "if not self._waits or self._one_request or not len(partition):",
        "if True:",
        "tests/integration/test_kafka_partitioner.py",
    ),
    mutant(
        "kafka: librdkafka's own partitioners have several requests on their way",
        "connectors/kafka/producer/rdkafka.py",
        'alone = {"max.in.flight.requests.per.connection": 1} if self._one_request else {}',
        "alone: dict[str, int] = {}",
        "tests/integration/test_kafka_partitioner.py",
    ),
    mutant(
        "files: the mark is not written",
        "connectors/files/sink.py",
        "if mark != self._mark:",
        "if False:",
        f"{CRASH}[04-files-kill]",
    ),
    mutant(
        "files: parts that are decided are swept",
        "connectors/files/parts.py",
        'named = [Committable("", 0, name)] if name in keep else []',
        "named = []",
        "tests/unit/test_file_sink.py",
    ),
    mutant(
        "files: parts that nobody decided stay",
        "connectors/files/parts.py",
        "if match is not None and may_undo(Leftover(match, name), generation, named):",
        "if False:",
        "tests/unit/test_file_sink.py",
    ),
)
MUTANTS = (*PROTOCOL, *KERNEL, *WAYS_OUT, *SINKS, *ROOMS)
