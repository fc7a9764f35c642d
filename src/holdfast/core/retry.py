"""How long and how often something that fails is tried again: one setting for every sink and phase."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.options import Duration, check_fields
from holdfast.core.units import parse_duration
from holdfast.errors import ConfigError

#: seconds that a call which does not return is waited for at least, also where nothing is tried again
ONE_CALL = 30.0


@dataclass(frozen=True)
class Retry:
    """What a query does about an endpoint that fails or is away: try again `for_` this long, then fail.

    The wait doubles from `first_wait` to `longest_wait`. It holds for the start, for the tasks of a batch, for sweeps
    and for commits. A sink that may lag (write-ahead) is tried again for ever, since nobody waits for it. A start or a
    sweep that does not return is given up after the same time, and not before 30 s.
    """

    for_: Duration = "5m"
    first_wait: Duration = 0.1
    longest_wait: Duration = "10s"

    def __post_init__(self) -> None:
        check_fields(self, "retry")
        first, longest = self._waits
        if not 0 < first <= longest:
            raise ConfigError("retry.first_wait must be above 0 and not above retry.longest_wait")

    @property
    def seconds(self) -> float:
        """How long, in seconds."""
        return parse_duration("retry.for_", self.for_) or 0.0

    def patience(self, spent: float = 0.0) -> float:
        """How long one call that does not return is waited for, in seconds, when so many are spent already."""
        return max(self.seconds - spent, ONE_CALL)

    @property
    def _waits(self) -> tuple[float, float]:
        first = parse_duration("retry.first_wait", self.first_wait) or 0.0
        return first, parse_duration("retry.longest_wait", self.longest_wait) or 0.0

    def wait(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        first, longest = self._waits
        return min(longest, first * 2.0 ** min(failures - 1, 40))
