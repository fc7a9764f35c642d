"""The checks of the contract suite, in the order they run; each docstring says what must hold and cites contracts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.testing.bench import Bench
from holdfast.testing.checks import after_decision, bad_days, good_days, neighbours

Check = Callable[[Bench], None]

_ORDER: tuple[Check, ...] = (
    good_days.same_name_after_restart,
    good_days.can_be_pickled,
    good_days.committables_are_plain_data,
    good_days.empty_batch,
    good_days.several_checkpoints_and_subtasks,
    good_days.values_survive,
    good_days.invisible_before_the_decision,
    bad_days.abort_undoes_a_prepared_task,
    bad_days.abort_undoes_a_half_written_task,
    bad_days.failed_task_leaves_nothing,
    bad_days.failed_companion_leaves_nothing,
    bad_days.companion_commits_later,
    bad_days.forgotten_attempt_is_swept,
    bad_days.crash_before_the_decision,
    bad_days.crash_after_the_decision,
    bad_days.commit_is_repeated,
    bad_days.commit_answer_is_lost,
    bad_days.commit_is_retried,
    bad_days.mark_is_lost,
    bad_days.recovery_is_repeated,
    bad_days.replay_with_other_partitions,
    bad_days.every_fault_point,
    after_decision.bad_value_is_refused_in_the_task,
    after_decision.still_prepared_tells_the_truth,
    after_decision.changed_options_change_nothing_decided,
    after_decision.restored_endpoint_is_refused,
    after_decision.repair_is_repeated,
    neighbours.other_pipelines_are_left_alone,
    neighbours.other_locations_are_left_alone,
    neighbours.other_sinks_are_left_alone,
    neighbours.newer_generations_are_left_alone,
    neighbours.late_task_is_swept,
    neighbours.late_task_cannot_touch_newer_work,
    neighbours.paused_driver_changes_nothing,
)
#: name -> check
CHECKS: Mapping[str, Check] = {check.__name__: check for check in _ORDER}
