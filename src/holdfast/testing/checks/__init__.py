"""The checks of the contract suite, in the order they run; each docstring says what must hold and cites contracts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.testing.checks import after_decision
from holdfast.testing.checks import failures as failures
from holdfast.testing.checks import happy_path as happy_path
from holdfast.testing.checks import isolation as isolation
from holdfast.testing.context import CheckContext

Check = Callable[[CheckContext], None]

_ORDER: tuple[Check, ...] = (
    happy_path.same_name_after_restart,
    happy_path.can_be_pickled,
    happy_path.committables_are_plain_data,
    happy_path.empty_batch,
    happy_path.several_checkpoints_and_subtasks,
    happy_path.values_survive,
    happy_path.invisible_before_the_decision,
    failures.abort_undoes_a_prepared_task,
    failures.abort_undoes_a_half_written_task,
    failures.failed_task_leaves_nothing,
    failures.failed_companion_leaves_nothing,
    failures.companion_commits_later,
    failures.forgotten_attempt_is_swept,
    failures.crash_before_the_decision,
    failures.crash_after_the_decision,
    failures.commit_is_repeated,
    failures.commit_answer_is_lost,
    failures.commit_is_retried,
    failures.mark_is_lost,
    failures.recovery_is_repeated,
    failures.replay_with_other_partitions,
    failures.every_fault_point,
    after_decision.bad_value_is_refused_in_the_task,
    after_decision.still_prepared_tells_the_truth,
    after_decision.changed_options_change_nothing_decided,
    after_decision.restored_endpoint_is_refused,
    after_decision.repair_is_repeated,
    isolation.other_pipelines_are_left_alone,
    isolation.other_locations_are_left_alone,
    isolation.other_sinks_are_left_alone,
    isolation.newer_generations_are_left_alone,
    isolation.late_task_is_swept,
    isolation.late_task_cannot_touch_newer_work,
    isolation.paused_driver_changes_nothing,
)
#: name -> check
CHECKS: Mapping[str, Check] = {check.__name__: check for check in _ORDER}
