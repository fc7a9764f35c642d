"""Every interleaving of drivers, tasks, endpoint and operator, on the real core (tests/unit/model).

With all rules of design.md on nothing is ever broken. With one of them off, the search finds the trace of faults.md
again, and the test says which invariant it breaks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.model import weakened
from tests.unit.model.kernel import Kernel
from tests.unit.model.lineage import Lineages
from tests.unit.model.scenarios import SCENARIOS, run
from tests.unit.model.search import Checker, Result, search
from tests.unit.model.world import (
    AHEAD,
    HELD_BACK,
    LOST,
    OPEN,
    SKIPPED,
    TWICE,
    TWO_DECISIONS,
    UNDONE,
    Bounds,
)

# A rule that is off shows in small bounds already; the exhaustive searches use the large ones of scenarios.py.
TRANSACTIONS = Bounds()
LOST_EXECUTOR = Bounds(retries=1)
FAILED_BATCH = Bounds(failures=1)
FILES = Bounds(write_ahead=True)
REFUSED_SEND = Bounds(write_ahead=True, refusals=1)
QUIET = Bounds(write_ahead=True, refusals=1, quiet=True)
TIMEOUT = Bounds(checkpoints=1, timeouts=1)


def breaks(kernel: Kernel, bounds: Bounds, invariant: str) -> Result:
    """The shortest trace with which these rules break this invariant."""
    result = search(Checker(replace(bounds, kernel=kernel)), wanted=invariant, limit=300_000)
    print(result)
    assert result.broken == invariant
    return result


def in_order(result: Result, *parts: str) -> bool:
    """Whether the trace has steps with these texts, one after the other."""
    steps = iter(result.trace)
    return all(any(part in step for step in steps) for part in parts)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_with_all_rules_on_no_interleaving_breaks_anything(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(scenario)
    with capsys.disabled():
        print(f"\n  {scenario}: {result}", end="")
    assert result.broken == "", result
    assert result.ends > 0, "a search that never comes to an end has checked nothing at one"


# -- rule 1, trace 1 -------------------------------------------------------------------------------------------------


def test_trace_1_a_driver_that_paused_after_its_claim_decides_what_its_successor_decided() -> None:
    result = breaks(weakened.NO_FENCE_AT_ALL, TRANSACTIONS, TWO_DECISIONS)
    assert in_order(result, "g1 claims", "g2 claims", "g1 reads the log", "decision of 0", "decision of 0")


def test_without_rule_1_the_rows_of_both_drivers_are_delivered() -> None:
    breaks(weakened.NO_FENCE_AT_ALL, TRANSACTIONS, TWICE)


def test_looking_for_newer_generations_is_no_fence_without_the_abort_slot() -> None:
    result = breaks(weakened.NO_ABORT_SLOTS, TRANSACTIONS, TWO_DECISIONS)
    assert in_order(result, "g1 sees no newer generation", "g2 claims", "g1 writes decision", "g2 writes decision")


def test_reading_the_log_before_the_fence_undoes_what_is_decided_in_between() -> None:
    result = breaks(weakened.READ_BEFORE_FENCE, TRANSACTIONS, UNDONE)
    assert in_order(result, "g2 reads the log", "g1 writes decision", "g2 undoes")


def test_slots_numbered_by_listing_step_over_the_fence() -> None:
    result = breaks(weakened.SLOTS_FROM_LISTING, TRANSACTIONS, TWO_DECISIONS)
    assert in_order(result, "g2 fences slot 0.0", "g1 writes decision of 0 to slot 0.1")


# -- rule 2, trace 2 -------------------------------------------------------------------------------------------------


def test_trace_2_a_recovery_that_paused_undoes_what_the_successor_decided() -> None:
    result = breaks(weakened.UNDO_ANY_GENERATION, TRANSACTIONS, UNDONE)
    assert in_order(result, "g1 reads the log", "g2 writes decision", "g1 undoes (1, 0")


def test_trace_2_a_queued_task_aborts_what_the_successor_decided_when_names_lack_the_generation() -> None:
    result = breaks(weakened.NAMES_WITHOUT_GENERATION, TRANSACTIONS, UNDONE)
    assert in_order(result, "g2 writes decision", "task (0, 0")


def test_trace_2_the_recovery_after_a_failed_batch_undoes_what_the_successor_decided() -> None:
    class AfterFailure(Checker):
        """g1 reaches a sweep after g2's claim by a failed batch only."""

        def successors(self, world):  # type: ignore[no-untyped-def]
            for label, after in super().successors(world):
                if not (label == "g2 claims" and world.failures):
                    yield label, after

    bounds = replace(FAILED_BATCH, kernel=weakened.UNDO_ANY_GENERATION)
    result = search(AfterFailure(bounds), wanted=UNDONE, limit=300_000)
    assert result.broken == UNDONE
    assert in_order(result, "g1 batch fails", "g2 writes decision", "g1 undoes (1, 0")


def test_a_lost_executor_aborts_the_decided_attempt_when_names_lack_the_attempt() -> None:
    result = breaks(weakened.NAMES_WITHOUT_ATTEMPT, LOST_EXECUTOR, UNDONE)
    assert in_order(result, "is lost, Spark tries again", "writes decision", "late task")


def test_a_commit_that_names_the_id_alone_commits_another_attempt_too() -> None:
    breaks(weakened.COMMIT_BY_NAME, LOST_EXECUTOR, TWICE)


# -- rule 3, trace 3 -------------------------------------------------------------------------------------------------


def test_trace_3_a_paused_clean_up_removes_the_log_files_of_the_successor() -> None:
    result = breaks(weakened.UNDO_ANY_GENERATION, FILES, UNDONE)
    assert in_order(result, "task (1, 0", "g1 lists leftovers", "g1 undoes (1, 0")
    breaks(weakened.UNDO_ANY_GENERATION, FILES, LOST)


def test_trace_3_a_late_task_overwrites_a_decided_log_file_when_names_lack_the_generation() -> None:
    result = breaks(weakened.NAMES_WITHOUT_GENERATION, FILES, UNDONE)
    assert in_order(result, "g2 writes decision", "task (0, 0")


# -- rule 4, trace 4 -------------------------------------------------------------------------------------------------


def test_trace_4_a_repair_that_is_not_recorded_is_made_again() -> None:
    result = breaks(weakened.NO_REPAIR_RECORD, TIMEOUT, TWICE)
    assert in_order(result, "times out", "g1 writes repair", "g1 commits", "g2 finds", "g2 writes repair", "g2 commits")


def test_trace_4_a_repair_by_subtask_index_produces_the_rows_of_the_committed_sibling() -> None:
    result = breaks(weakened.MATCH_BY_INDEX, TIMEOUT, TWICE)
    assert in_order(result, "times out", "lost", "writes repair")


# -- rule 5, trace 5 -------------------------------------------------------------------------------------------------


def test_trace_5_a_driver_decides_after_its_fence_was_pruned() -> None:
    result = breaks(weakened.PRUNE_ABORTS, TRANSACTIONS, TWO_DECISIONS)
    assert in_order(result, "g1 sees no newer generation", "g2 fences", "g2 prunes", "g1 writes decision")


# -- rule 6, trace 6 -------------------------------------------------------------------------------------------------


def test_trace_6_group_offsets_that_follow_spark_lead_a_lagging_sink() -> None:
    result = breaks(weakened.OFFSETS_DO_NOT_WAIT, REFUSED_SEND, AHEAD)
    assert in_order(result, "is refused", "Spark commits 0", "commits group offsets up to 0")


# -- rule 7, trace 7 -------------------------------------------------------------------------------------------------


def test_trace_7_the_last_checkpoint_is_held_back_without_a_timer() -> None:
    result = breaks(weakened.NO_TIMER, QUIET, HELD_BACK)
    assert in_order(result, "is refused", "Spark commits 1")


def test_trace_7_a_restart_without_new_data_holds_rows_back_when_only_batches_deliver() -> None:
    class SparkIsDone(Checker):
        """g2 starts when Spark has committed everything: no batch will come to it."""

        def successors(self, world):  # type: ignore[no-untyped-def]
            for label, after in super().successors(world):
                if label != "g2 claims" or world.spark == self.bounds.checkpoints - 1:
                    yield label, after

    bounds = replace(QUIET, checkpoints=1, kernel=weakened.ONLY_BATCHES_DELIVER)
    result = search(SparkIsDone(bounds), limit=300_000)
    assert result.broken == HELD_BACK
    assert in_order(result, "g1 returns: Spark commits 0", "g2 claims", "g2 reads the log")


# -- rule 8, trace 8 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [TRANSACTIONS, FILES], ids=["transactions", "files"])
def test_trace_8_a_task_that_prepares_after_the_recovery_stays_open_unless_batches_sweep(bounds: Bounds) -> None:
    result = breaks(weakened.SWEEP_AT_START_ONLY, bounds, OPEN)
    assert in_order(result, "g2 lists leftovers", "task (0, 0", "a batch without rows")


# -- rule 9, trace 9 -------------------------------------------------------------------------------------------------


def test_trace_9_two_drivers_read_the_mark_before_either_initialises_and_both_send() -> None:
    result = breaks(weakened.MARK_BEFORE_INITIALISE, FILES, TWICE)
    sends = [step for step in result.trace if "sends 0/0" in step]
    assert [step[:2] for step in sends] == ["g1", "g2"] or [step[:2] for step in sends] == ["g2", "g1"]


# -- rule 10 ---------------------------------------------------------------------------------------------------------


def test_a_ledger_without_lineage_skips_the_rows_of_a_new_location_in_silence() -> None:
    result = search(Lineages(weakened.LEDGER_WITHOUT_LINEAGE))
    assert result.broken == SKIPPED
    assert in_order(result, "is deleted", "lineage 1 starts")


def test_a_ledger_that_is_not_judged_skips_the_rows_of_an_old_copy_in_silence() -> None:
    result = search(Lineages(weakened.NO_LEDGER_CHECK))
    assert result.broken == SKIPPED
    assert in_order(result, "old copy is put back", "lineage 0 starts")
