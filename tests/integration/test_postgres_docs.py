"""The questions to the server that docs/postgres.md shows, asked of a real one."""

from __future__ import annotations

from pathlib import Path

from tests.integration.pg import Query, batch, rows, settle
from tests.servers.postgres import PostgresServer, execute
from tests.unit.test_docs import DOCS, blocks


def test_the_questions_of_the_page_are_answered(postgres: PostgresServer, tmp_path: Path) -> None:
    prepared, staged, ledger = blocks(DOCS / "postgres.md", "sql")
    dsn = postgres.new_database()
    done, queries = {}, {mode: Query(tmp_path / mode, dsn, name=mode) for mode in ("ledger", "two-phase")}
    for mode, query in queries.items():
        run = query.start(mode=mode, table=mode.replace("-", "_"))
        run.run(0, batch(rows(1), rows(2, 3)))
        settle(run)
        done[mode] = batch(rows(4), rows(5, 6)).write(run.info, run.sinks, 1, 0)
        run.close()
    gids = {c.data["gid"] for report in done["two-phase"] for c in report.committables}
    assert gids <= {gid for gid, _, _ in execute(dsn, prepared)} and len(gids) == 2
    assert sorted(row[3] for row in execute(dsn, staged)) == [1, 2]
    assert {(row[2], row[3]) for row in execute(dsn, ledger)} == {(0, 3)}
    for mode, query in queries.items():  # as the page says: a start rolls back what is not decided
        query.start(mode=mode, table=mode.replace("-", "_")).close()
    assert not gids & {gid for gid, _, _ in execute(dsn, prepared)}
    assert execute(dsn, staged) == []
