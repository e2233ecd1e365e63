"""What a row more costs a decode step, learned from the steps that have run."""

from __future__ import annotations

# What a row takes of a step before anything is known: as on two AVX2 cores, where one row mostly reads the weights.
_PRIOR_SHARE = 0.2
_PRIOR_WEIGHT = 0.3  # in rows squared: so much the numbers of rows must vary before the slope is more measured than assumed
_REMEMBERED = 0.97
_LEAST_SHARE = 0.02
_OUTLIER = 2.0
_FIRST_STEPS = 4


class StepCost:
    """A straight line through the times of recent steps by their rows, which forgets old ones."""

    def __init__(self) -> None:
        self._steps = 0
        self._rows = self._seconds = 0.0
        self._variance = self._covariance = 0.0

    @property
    def known(self) -> bool:
        """Whether enough steps have run to say anything."""
        return self._steps >= _FIRST_STEPS

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows, all of them decoding, has run."""
        if self.known:  # the machine does other things too: one late step must not count for hundreds
            seconds = min(seconds, _OUTLIER * self.step_s(rows))
        self._steps += 1
        share = max(1 - _REMEMBERED, 1 / self._steps)
        off_rows, off_seconds = rows - self._rows, seconds - self._seconds
        self._rows += share * off_rows
        self._seconds += share * off_seconds
        self._variance += share * (off_rows * (rows - self._rows) - self._variance)
        self._covariance += share * (off_rows * (seconds - self._seconds) - self._covariance)

    @property
    def row_s(self) -> float:
        """Seconds that one more row takes."""
        prior = self._seconds * _PRIOR_SHARE / (1 - _PRIOR_SHARE + _PRIOR_SHARE * self._rows)
        slope = (self._covariance + _PRIOR_WEIGHT * prior) / (self._variance + _PRIOR_WEIGHT)
        most = self._seconds / max(1.0, self._rows)
        return min(most, max(_LEAST_SHARE * most, slope))

    def step_s(self, rows: float) -> float:
        """Seconds that a step of so many rows takes."""
        return max(self._seconds + (rows - self._rows) * self.row_s, rows * self.row_s)
