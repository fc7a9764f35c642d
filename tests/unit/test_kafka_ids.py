"""Transactional ids are bounded in number, and no two attempts that can be alive at once share one (P4); no broker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.kafka.sink import ids
from holdfast.core.naming import Task
from holdfast.core.passes import PASSES, RING, TURNS, Attempt, Passes, place

#: a pass: how many other tasks Spark begins before each try of one subtask; whether it is a repair; whether it fails
PASS = st.tuples(st.lists(st.integers(0, 200), min_size=1, max_size=5), st.booleans(), st.booleans())


def name(number: int, attempt: Attempt, generation: int = 7) -> str:
    task = Task("orders", "kafka", "a" * 32, generation, 1, 0, attempt.task, place=place(number, attempt))
    return str(ids.make(task))


@given(st.lists(PASS, max_size=PASSES - TURNS))
def test_p4_no_attempt_has_the_id_of_one_that_may_still_be_alive(
    history: list[tuple[list[int], bool, bool]],
) -> None:
    """Tries that were given up may go on for as long as they like; the one that won has ended."""
    passes, alive, task = Passes(), set[str](), 0
    for between, repair, fails in history:
        number = passes.begin(repair=repair)
        tries = []
        for tried, others in enumerate(between):
            task += 1 + others
            tries.append(Attempt(tried, task))
        names = [name(number, attempt) for attempt in tries]
        assert len({*names}) == len(names), "a retry has not the id of its predecessor"
        assert not alive & {*names}
        passes.end(number, None if fails else [tries[-1]])
        alive.update(names if fails else names[:-1])


def test_p4_tasks_1000_and_1061_do_not_share_an_id() -> None:
    """61 partitions: the retry of the first one, and the next checkpoint's task, are 61 further on."""
    again = Attempt(0, 1061, first_stage=False)
    assert name(0, Attempt(0, 1000)) != name(0, again), "a stage that is run again counts its tries from 0"


def test_p4_attempts_a_whole_ring_apart_do_not_share_an_id() -> None:
    """As many partitions as the ring has places: retries have a count of their own, and checkpoints take turns."""
    passes = Passes()
    number = passes.begin()
    first, retry = Attempt(0, 1000), Attempt(1, 1000 + RING)
    assert name(number, first) != name(number, retry)
    passes.end(number, [retry])
    later = [passes.begin() for _ in range(10 * TURNS)]
    assert number not in later, "the first may still be alive"
    assert name(later[0], Attempt(0, 1000 + 2 * RING)) != name(later[1], Attempt(0, 1000 + 3 * RING))


def test_p4_a_stage_that_was_run_again_leaves_its_number_to_those_who_may_be_alive() -> None:
    passes = Passes()
    number = passes.begin()
    first, again = Attempt(0, 1000), Attempt(0, 1061, first_stage=False)
    assert name(number, first) != name(number, again)
    passes.end(number, [again])
    assert number not in [passes.begin() for _ in range(10 * TURNS)]


@given(st.integers(0, 2**40), st.integers(1, RING - 1))
def test_p4_runs_of_a_stage_meet_only_a_whole_ring_apart(task: int, further: int) -> None:
    first = Attempt(0, task)
    for again in (task + further, task + RING + further):
        assert name(3, first) != name(3, Attempt(0, again, first_stage=False))


def test_p4_a_query_without_failures_needs_few_ids_however_long_it_runs() -> None:
    passes, used = Passes(), set()
    for task in range(20_000):
        number = passes.begin()
        used.add(name(number, Attempt(0, task)))
        passes.end(number, [Attempt(0, task)])
    assert len(used) == TURNS * RING


def test_p4_failures_and_repairs_need_a_bounded_number_of_ids() -> None:
    passes, used = Passes(), set()
    for task in range(100_000):
        number, attempt = passes.begin(repair=task % 7 == 0), Attempt(task % 2, task)
        used.add(name(number, attempt))
        passes.end(number, None if task % 3 else [attempt])
    assert len(used) <= PASSES * RING * 2


def test_p4_the_id_of_a_pass_is_not_used_by_the_next() -> None:
    """Kafka ends a transaction in the background, and whoever asks for its id meanwhile has to wait."""
    passes, before = Passes(), None
    for n in range(2000):
        number = passes.begin(repair=n % 7 == 0)
        assert number != before
        passes.end(number, None if n % 5 == 0 else [Attempt(0, n)])
        before = number


def test_p4_a_repair_has_other_ids_than_what_it_repairs() -> None:
    passes = Passes()
    numbers = [passes.begin()]
    passes.end(numbers[0], [Attempt(0, 0)])
    for n in range(100):
        numbers.append(passes.begin(repair=True))
        passes.end(numbers[-1], [Attempt(0, n)])
    assert len({*numbers}) == len(numbers)


def test_p4_the_next_runs_have_other_ids() -> None:
    made = [name(0, Attempt(0, 0), generation) for generation in range(ids.GENERATIONS + 1)]
    assert len({*made}) == ids.GENERATIONS and made[0] == made[-1]
