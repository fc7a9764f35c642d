"""Which log files Kafka's write-ahead mode publishes in one transaction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.kafka.sink.write_ahead import MAX_TRANSACTION_BYTES, together

FILES = st.lists(st.integers(1, 2 * MAX_TRANSACTION_BYTES), max_size=12).map(
    lambda sizes: [{"subtask": n, "bytes": size} for n, size in enumerate(sizes)]
)


def test_small_files_are_published_together_and_large_ones_alone() -> None:
    small = [{"subtask": n, "bytes": 1000} for n in range(4)]
    large = [{"subtask": n, "bytes": MAX_TRANSACTION_BYTES} for n in range(4)]
    assert together(small) == [small]
    assert together(large) == [[file] for file in large]
    assert together([]) == []


@given(FILES, st.randoms(use_true_random=False))
def test_every_file_once_whatever_their_order(files, random) -> None:
    groups = together(files)
    assert [file for group in groups for file in group] == files
    shuffled = list(files)
    random.shuffle(shuffled)
    assert together(shuffled) == groups


@given(FILES, st.data())
def test_a_retry_repeats_the_same_transactions_when_some_are_resolved(files, data) -> None:
    """Else rows would be published again, in a publisher that does not know of the first time."""
    groups = together(files)
    kept = [group for group in groups if data.draw(st.booleans())]
    assert together([file for group in kept for file in group]) == kept
