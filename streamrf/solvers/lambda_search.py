"""Which lambda to try next, from what those before came to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

GAIN = 0.002  # a smaller share of the error is not worth another lambda
WALK = 10.0  # one step of lambda


@dataclass(frozen=True)
class Trial:
    """A lambda, and the squared error on the hold-out rows that it came to, as a share of their variance."""

    ridge: float
    score: float
    steps: int


def next_ridge(first: float, tried: list[Trial], fixed: bool) -> float | None:
    """Down from the first while that helps; up, if it never did. None when neither does."""
    if not tried:
        return first
    if fixed or not np.isfinite(tried[-1].score):
        return None
    if len(tried) == 1:
        return first / WALK
    down = tried[1].score < tried[0].score
    if len(tried) == 2 and not down:
        return first * WALK
    if _improved(tried):
        return tried[-1].ridge / WALK if down else tried[-1].ridge * WALK
    return None


def _improved(tried: list[Trial]) -> bool:
    return tried[-1].score < (1 - GAIN) * min(trial.score for trial in tried[:-1])


FIRST, UP, DOWN = (0, -1, -2), (1, 2), (-3, -4)  # powers of ten that are tried together


def next_block(first: float, tried: list[Trial], fixed: bool) -> list[float] | None:
    """Several at once: the first and two below; then two above, or two further below, where the edge was best and
    another step of lambda promises something."""
    if fixed:
        return None if tried else [first]
    if len(tried) != len(FIRST):
        return None if tried else [first * WALK**power for power in FIRST]
    scores = [trial.score for trial in tried]
    best = int(np.argmin(scores))
    if best == 0:
        return [first * WALK**power for power in UP]
    if best == len(FIRST) - 1 and _promised(*scores) > GAIN * scores[-1]:
        return [first * WALK**power for power in DOWN]
    return None


def _promised(first: float, second: float, third: float) -> float:
    """What the next step would gain, if gains went on falling as those of the last two steps did."""
    before, last = first - second, second - third
    return last * min(1.0, last / before) if before > 0 else last
