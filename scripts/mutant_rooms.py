"""What else `make mutants` breaks: orders, committers, SQLite, take-overs, routes, dead letters, floors, files."""

from __future__ import annotations

from mutant import mutant
from mutant_savepoints import SAVEPOINTS

ORDERS, KILLS = "tests/unit/test_orders.py", "tests/unit/test_orders_kills.py"
COMMITTERS, MARKS = "tests/unit/test_committers.py", "tests/unit/test_marks.py"
SQLITE, SQLITE_AFTER = "tests/unit/test_sqlite_sink.py", "tests/unit/test_sqlite_after_decision.py"
SELECTIONS, LETTERS = "tests/unit/test_selection.py", "tests/unit/test_dead_letters.py"
FLOOR = "tests/unit/test_floor.py"
FILES, FILES_AFTER = "tests/unit/test_file_sink.py", "tests/unit/test_file_after_decision.py"
FILES_SHOWN = "tests/unit/test_file_shown.py"

#: An operator's orders, and the start that carries them out.
RESOLVE = (
    mutant(
        "resolve: rows that are given up are not read back",
        "checkpoint/orders.py",
        'if order["how"] == GIVE_UP else (None, None)',
        "if False else (None, None)",
        ORDERS,
    ),
    mutant(
        "resolve: a sink's state goes on planning with rows that are given up",
        "checkpoint/orders.py",
        "_leave_out(log, number, named[name], order)",
        "pass",
        "tests/unit/test_orders_files.py",
    ),
    mutant(
        "resolve: what is given up of a sink that is gone stays owed",
        "checkpoint/orders.py",
        "if sink not in present and _settle(log, number, sink):",
        "if False:",
        ORDERS,
    ),
    mutant(
        "resolve: an order about a sink that is gone waits for ever",
        "checkpoint/orders.py",
        "if sink not in names:",
        "if False:",
        ORDERS,
    ),
    mutant(
        "resolve: what changed since the operator looked is not noticed",
        "checkpoint/resolve.py",
        "if found.get(OwedCommit(finding.checkpoint_id, finding.sink)) != finding:",
        "if False:",
        "tests/unit/test_resolve.py",
    ),
    mutant(
        "resolve: an order forgets what was accepted as missing",
        "checkpoint/resolve.py",
        "return {THROUGH: before[THROUGH]} if before is not None and THROUGH in before else {}",
        "return {}",
        KILLS,
    ),
    mutant(
        "resolve: accepting a restored endpoint forgets an order that waits",
        "checkpoint/resolve.py",
        'if before and not before.get("carried_out", True):',
        "if False:",
        KILLS,
    ),
    mutant(
        "resolve: a report that a kill kept from being written is never written",
        "checkpoint/orders.py",
        "_report(log, number, sink, order)\n if order",
        "pass\n if order",
        "tests/unit/test_resolve.py",
        KILLS,
    ),
    mutant(
        "resolve: rows of the log are removed before the report has them",
        "checkpoint/resolve.py",
        "files = [keep_file(log.storage, rows_folder(number, sink), c) for c in about if sealed(c)]",
        "files = []",
        ORDERS,
    ),
)

#: Who remembers what was sent.
MARKS_KEPT = (
    mutant(
        "committers: marks that become an older copy while the query runs are written over",
        "sinks/write_ahead.py",
        "if last >= 0:",
        "if False:",
        MARKS,
    ),
    mutant(
        "files: a folder that becomes an older copy while the query runs is written into",
        "connectors/files/starting.py",
        "if found.join(mark) != found:",
        "if False:",
        FILES_AFTER,
    ),
    mutant(
        "committers: a mark in a file moves backwards",
        "committers/file.py",
        "if stored is None or stored < checkpoint_id:",
        "if True:",
        COMMITTERS,
    ),
    mutant(
        "committers: a paused driver sets a mark in a file back",
        "committers/file.py",
        "with _reaching(path), self._locked():",
        "with _reaching(path):",
        COMMITTERS,
    ),
    mutant(
        "committers: a mark in a table moves backwards",
        "committers/sql.py",
        "WHERE excluded.checkpoint_id > holdfast_committer.checkpoint_id",
        "WHERE true",
        COMMITTERS,
    ),
    mutant(
        "committers: a mark in SQLite is not durable when it is acknowledged",
        "committers/sql.py",
        'connection.execute("PRAGMA synchronous=FULL")',
        'connection.execute("PRAGMA synchronous=OFF")',
        COMMITTERS,
    ),
    mutant(
        "committers: a mark in Cassandra moves backwards",
        "committers/cassandra.py",
        "(*key, checkpoint_id, checkpoint_id + 1),",
        "(*key, checkpoint_id, __import__('time').time_ns() // 1000),",
        "tests/integration/test_cassandra_committer.py",
    ),
    mutant(
        "committers: two sinks share the marks of one object",
        "sinks/write_ahead.py",
        "self.committer = copy.copy(committer)",
        "self.committer = committer",
        COMMITTERS,
    ),
    mutant(
        "committers: the newest mark of all speaks for every subtask",
        "sinks/write_ahead.py",
        "check_subtasks(run, self._where, self.name, self.committer.is_checkpoint_committed)",
        "pass",
        MARKS,
    ),
    mutant(
        "committers: marks that were restored are taken for whole",
        "sinks/write_ahead.py",
        "check_ledger(run, self._where, ledger, sink=self.name)",
        "pass",
        MARKS,
    ),
    mutant(
        "committers: a mark is tried once",
        "sinks/write_ahead.py",
        "for wait in (*MARK_WAITS, None):",
        "for wait in (None,):",
        MARKS,
    ),
)

#: The embedded default.
EMBEDDED = (
    mutant(
        "SQLite: two drivers look into the ledger before one of them writes",
        "connectors/sqlite/sink.py",
        'connection.execute("BEGIN IMMEDIATE")\n try:',
        'connection.execute("BEGIN DEFERRED")\n try:',
        SQLITE,
        SQLITE_AFTER,
    ),
    mutant(
        "SQLite: rows are not tried before the decision",
        "connectors/sqlite/sink.py",
        "if self._trial is not None and self._tried is not None:",
        "if False:",
        SQLITE,
    ),
    mutant(
        "SQLite: a commit goes by the options of today",
        "connectors/sqlite/sink.py",
        "table = into[0] if into else self.table",
        "table = self.table",
        SQLITE_AFTER,
    ),
    mutant(
        "SQLite: a commit does not look whose name it is by now",
        "connectors/sqlite/sink.py",
        "if any(lineage != run.lineage for lineage in ledger):",
        "if False:",
        SQLITE,
        SQLITE_AFTER,
    ),
    mutant(
        "SQLite: a restored file is taken for whole",
        "connectors/sqlite/sink.py",
        "check_ledger(self.run, self._where, self._found, sink=self.name)",
        "pass",
        SQLITE_AFTER,
    ),
    mutant(
        "SQLite: a file that is gone is made anew by a commit",
        "connectors/sqlite/table.py",
        "{'rwc' if create else 'rw'}",
        "rwc",
        SQLITE_AFTER,
    ),
    mutant(
        "SQLite: a checkpoint is not durable when it is acknowledged",
        "connectors/sqlite/table.py",
        'connection.execute("PRAGMA synchronous=FULL")',
        'connection.execute("PRAGMA synchronous=OFF")',
        SQLITE,
        SQLITE_AFTER,
    ),
)

#: Whose name it is after a take-over, at each endpoint.
TAKEN_OVER = (
    mutant(
        "take-over: SQLite's ledger keeps the other location's marks",
        "connectors/sqlite/sink.py",
        "self._ledger.take_over(connection, self._committed)",
        "pass",
        SQLITE_AFTER,
    ),
    mutant(
        "take-over: SQLite forgets what this location has committed",
        "connectors/sqlite/table.py",
        "self.add(connection, committed, 0)",
        "pass",
        SQLITE_AFTER,
    ),
    mutant(
        "take-over: marks of other locations stay in their files",
        "committers/file.py",
        "if path.parent != self._folder:\n path.unlink(missing_ok=True)",
        "if path.parent != self._folder:\n pass",
        COMMITTERS,
    ),
    mutant(
        "take-over: it forgets this location's own marks, too",
        "committers/sql.py",
        "if job != self.job_id:",
        "if True:",
        COMMITTERS,
    ),
    mutant(
        "take-over: what others prepared in a folder stays",
        "connectors/files/sink.py",
        "self._others = set_others_aside(self.name, folder, self.run, keep, self._others)",
        "pass",
        FILES,
        FILES_AFTER,
    ),
    mutant(
        "take-over: a run that took the name undoes what its successor prepares, too",
        "connectors/postgres/sink.py",
        "self._sweeps_all = False\n self._choose(connection)",
        "self._choose(connection)",
        "tests/integration/test_postgres_decided.py",
    ),
    mutant(
        "postgres log: rows are committed without their ledger row",
        "connectors/postgres/logged.py",
        "ledger.add(run, self.checkpoint_id, rows, self.part),",
        '"SELECT",',
        "tests/integration/test_postgres_logged.py",
    ),
    mutant(
        "postgres log: a twin of the delivering task is ended, too",
        "connectors/postgres/logged.py",
        "< (run.generation, number)",
        "<= (run.generation, number)",
        "tests/integration/test_postgres_logged.py",
    ),
    mutant(
        "postgres log: rows that are sent again are taken for the staged ones of their checkpoint",
        "connectors/postgres/kinds.py",
        'part = logged.PART if staged else ""',
        'part = ""',
        "tests/integration/test_postgres_logged.py",
    ),
    mutant(
        "postgres log: a task does not prove its rows",
        "connectors/postgres/logged.py",
        "self._proof.check(rows)",
        "pass",
        "tests/integration/test_postgres_logged.py",
    ),
    mutant(
        "postgres: staged text is compared as its type is",
        "connectors/postgres/table.py",
        "return declare(self.name, self.type.spelled, self.collation)",
        "return declare(self.name, self.type.spelled, None)",
        "tests/integration/test_postgres_collations.py",
    ),
    mutant(
        "start: a sink that hangs is waited for",
        "checkpoint/retrying.py",
        "if not self.loops.call(sink.name, do, patience, lambda: False):",
        "if do() is not None:",
        "tests/unit/test_hanging_sweeps.py",
    ),
    mutant(
        "take-over: the second sweep forgets how far others got",
        "connectors/files/starting.py",
        "marks = read_marks(folder, LEDGER, ASIDE)",
        "marks = read_marks(folder, LEDGER)",
        FILES_AFTER,
    ),
    mutant(
        "take-over: the log does not say that one is under way",
        "checkpoint/lineage.py",
        "since=generation, taking_over=True",
        "since=generation, taking_over=False",
        "tests/unit/test_take_over.py",
    ),
    mutant(
        "take-over: Kafka's ledger stays the other location's",
        "connectors/kafka/sink/marks.py",
        "take_over(run, target)\n _wait_for_marks(run, target)",
        "_wait_for_marks(run, target)",
        "tests/integration/test_kafka_after_decision.py",
    ),
    mutant(
        "take-over: what another location prepared puts its name back into Kafka's ledger",
        "connectors/kafka/sink/two_phase.py",
        "marks.take_over(run, self._target, checkpoint_id)",
        "pass",
        "tests/integration/test_kafka_after_decision.py",
    ),
)

#: Which rows are whose.
ROUTES = (
    mutant(
        "routes: a sink gets the rows of all",
        "sinks/selection.py",
        "return rows.filter(wanted), None",
        "return rows, None",
        SELECTIONS,
    ),
    mutant(
        "routes: bad rows go to the sink, too",
        "sinks/selection.py",
        "return rows.filter(good), rows.filter(marked)",
        "return rows, rows.filter(marked)",
        SELECTIONS,
    ),
    mutant(
        "routes: a row of which nobody knows whether it is bad is bad",
        "sinks/selection.py",
        "bad = pc.fill_null(batch.column(self.reject), fill_value=False)",
        "bad = pc.fill_null(batch.column(self.reject), fill_value=True)",
        SELECTIONS,
    ),
    mutant(
        "routes: a repair looks at rows of other sinks",
        "sinks/subtask.py",
        "digest.add(selection.split(batch)[0])",
        "digest.add(batch)",
        SELECTIONS,
    ),
    mutant(
        "routes: sinks with rows of their own share a stream",
        "sinks/subtask.py",
        "by_selection.setdefault(selections.get(channel.sink.name, WHOLE), [])",
        "by_selection.setdefault(WHOLE, [])",
        SELECTIONS,
    ),
)

#: Rows that a sink does not take.
SET_ASIDE = (
    mutant(
        "dead letters: max_rows is no limit",
        "checkpoint/bad_rows.py",
        "if letters.max_rows is not None and bad > letters.max_rows:",
        "if False:",
        LETTERS,
    ),
    mutant(
        "dead letters: max_ratio is no limit",
        "checkpoint/bad_rows.py",
        "if letters.max_ratio is not None and bad > letters.max_ratio * max(rows, SMALLEST):",
        "if False:",
        LETTERS,
    ),
    mutant(
        "dead letters: the last of a task are not written",
        "sinks/letters.py",
        "self.flush()\n found = []",
        "found = []",
        LETTERS,
    ),
    mutant(
        "dead letters: a refused row is set aside and told nobody",
        "sinks/careful.py",
        "self._box.add(self._channel.sink.name, part.take(pa.array(named)), error)",
        "pass",
        LETTERS,
    ),
    mutant(
        "dead letters: what was written before a bad row was found stays",
        "sinks/careful.py",
        "if not clean:\n self._channel.undo(None)\n return clean",
        "return True",
        LETTERS,
    ),
    mutant(
        "dead letters: a row that was tried stays in the transaction",
        "sinks/careful.py",
        "self._channel.undo(None)\n return None",
        "return None",
        LETTERS,
    ),
    mutant(
        "dead letters: a damaged copy is kept",
        "sinks/dead_letters.py",
        'if found != (handle["bytes"], handle["sha256"]):',
        "if found is None:",
        LETTERS,
    ),
    mutant(
        "dead letters: the log's copy is never removed",
        "sinks/dead_letters.py",
        "self.forget_when_complete(checkpoint_id, committables)",
        "pass",
        LETTERS,
    ),
)

#: How a start knows what it need not look at.
FLOORS = (
    mutant(
        "floor: decisions of closed generations are forgotten",
        "checkpoint/log.py",
        "sorted(g for g in kept if g < self.generation)",
        "[]",
        FLOOR,
    ),
    mutant(
        "floor: generations above it are not fenced",
        "checkpoint/slots.py",
        "return range(0 if self._floor is None else self._floor.generation, newest + 1)",
        "return range(newest, newest + 1)",
        FLOOR,
    ),
    mutant(
        "floor: it is written before older drivers are fenced",
        "checkpoint/log.py",
        "self._fence()\n self.load()\n ",
        "self._slots.raise_floor(self.generation, range(self.generation))\n self._fence()\n self.load()\n ",
        FLOOR,
    ),
    mutant(
        "floor: one whose generation is gone is trusted",
        "checkpoint/slots.py",
        "if not self._claimed(self._floor.generation):",
        "if False:",
        FLOOR,
    ),
    mutant(
        "floor: one under another's name is trusted",
        "checkpoint/slots.py",
        "if floor.generation != number:",
        "if False:",
        FLOOR,
    ),
    mutant(
        "slots: those of an earlier holdfast are looked for in folders it did not have",
        "checkpoint/slots.py",
        'str(claim.get("slots", FLAT))',
        "folder_for(generation)",
        FLOOR,
    ),
    mutant(
        "slots: only the first folder is read without a floor",
        "checkpoint/slots.py",
        "folders = {FLAT, *(folder_for(number) for number in range(0, wanted.stop, SHARD))}",
        "folders = {FLAT}",
        FLOOR,
    ),
)

#: Announced, then shown: a file is seen once.
SHOWN = (
    mutant(
        "files: what another driver has announced is announced again",
        "connectors/files/publish.py",
        "if folder.storage.create(name, encode(_KIND,",
        "if folder.storage.replace(name, encode(_KIND,",
        FILES_SHOWN,
    ),
    mutant(
        "files: what was announced before a crash is written again",
        "connectors/files/perform.py",
        "done = {roll.number: Done(roll.number) for roll in rolls if roll.number in known}",
        "done = {}",
        FILES,
    ),
    mutant(
        "files: nothing is announced before it is shown",
        "connectors/files/perform.py",
        "found = announce(folder, lineage, group, mine)",
        "found = list(mine)",
        FILES,
    ),
    mutant(
        "files: a paused driver shows what a reader has taken",
        "connectors/files/perform.py",
        "mark = read_marks(folder).get(self.run.lineage, Mark()).roll",
        "mark = -1",
        FILES,
    ),
    mutant(
        "files: hidden files of a driver that is about to announce them are removed",
        "connectors/files/publish.py",
        "and int(match[1]) <= generation and int(match[2]) <= done:",
        "and int(match[1]) <= generation:",
        FILES,
    ),
    mutant(
        "files: an announcement is forgotten before its files are shown",
        "connectors/files/publish.py",
        "if all(file.number <= done for file in files):",
        "if True:",
        FILES,
    ),
    mutant(
        "files: that a file is shown is not durable",
        "connectors/files/publish.py",
        "suppress(FileNotFoundError):\n fsync_folder(place)",
        "suppress(FileNotFoundError):\n pass",
        FILES_SHOWN,
    ),
    mutant(
        "files: that a hidden file is whole is not durable when it is announced",
        "connectors/files/publish.py",
        'with told(place, "synced"):\n fsync_folder(place)',
        'with told(place, "synced"):\n pass',
        FILES_SHOWN,
    ),
    mutant(
        "files: parts are removed before the mark is written",
        "connectors/files/sink.py",
        "self._advance_mark(folder, Mark(checkpoint_id, max(done, default=-1)))",
        "folder.delete_parts({part.file for roll in todo for part in roll.parts}); "
        "self._advance_mark(folder, Mark(checkpoint_id, max(done, default=-1)))",
        FILES,
    ),
)
ROOMS = (*RESOLVE, *MARKS_KEPT, *EMBEDDED, *TAKEN_OVER, *ROUTES, *SET_ASIDE, *FLOORS, *SHOWN, *SAVEPOINTS)
