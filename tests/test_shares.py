"""Shares of members by rows that none has seen."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from streamrf.solvers.shares import class_shares, squared_shares

N = 4000


def log_loss(log_odds: np.ndarray, codes: np.ndarray) -> float:
    each = np.concatenate([-log_odds / 2, log_odds / 2], axis=1) if log_odds.shape[1] == 1 else log_odds
    return float(-scipy.special.log_softmax(each, axis=1)[np.arange(len(codes)), codes].mean())


def blended(scores: np.ndarray, codes: np.ndarray, log_odds: list[bool]) -> np.ndarray:
    found, intercept = class_shares(scores, codes, np.full(len(codes), 1 / len(codes)), log_odds)
    return np.einsum("m,mnk->nk", found, scores) + intercept


def drawn(true: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Codes of classes, from log odds of two or scores of several."""
    each = np.concatenate([np.zeros_like(true), true], axis=1) if true.shape[1] == 1 else true
    return (each + rng.gumbel(size=each.shape)).argmax(axis=1)


@pytest.mark.parametrize("level", [-5.0, -4.0, 0.0, 4.0])
def test_a_rare_class_needs_no_share_to_be_rare(level: float) -> None:
    """Squares near the lowest score, or the highest, all alike but for little: that little says which rows have it."""
    rng = np.random.default_rng(0)
    true = level + rng.standard_normal((N, 1))
    codes = drawn(true, rng)
    probability = scipy.special.expit(true)
    squares = 2 * (probability.mean() + 0.5 * (probability - probability.mean())) - 1  # shrunk by a penalty
    frequency = np.full((N, 1), scipy.special.logit(codes.mean()))
    least, most = log_loss(true, codes), log_loss(frequency, codes)
    assert log_loss(blended(squares[None], codes, [False]), codes) < least + 0.3 * (most - least)


@pytest.mark.parametrize("outputs", [1, 4])
def test_members_that_say_nothing_leave_the_frequencies(outputs: int) -> None:
    rng = np.random.default_rng(1)
    codes = drawn(np.tile([-2.0] if outputs == 1 else [0.0, -1.0, -2.0, -3.0], (N, 1)), rng)
    scores = 1e-3 * rng.standard_normal((2, N, outputs))
    counts = np.bincount(codes, minlength=max(outputs, 2)) / N
    flat = np.log(counts[1:] / counts[:1]) if outputs == 1 else np.log(counts)
    assert log_loss(blended(flat + scores, codes, [True, True]), codes) == pytest.approx(
        log_loss(np.tile(flat, (N, 1)), codes), rel=0.002
    )


@pytest.mark.parametrize("outputs", [1, 3])
def test_true_log_odds_are_taken_as_they_are(outputs: int) -> None:
    rng = np.random.default_rng(2)
    true = 2 * rng.standard_normal((N, outputs)) + np.linspace(-1, 1, outputs)
    codes = drawn(true, rng)
    found, _ = class_shares(np.stack([true, rng.standard_normal((N, outputs))]), codes, np.full(N, 1 / N), [True] * 2)
    assert found[0] == pytest.approx(1.0, abs=0.1)
    assert found[1] < 0.1
    assert log_loss(blended(true[None], codes, [True]), codes) < 1.01 * log_loss(true, codes)


def test_a_class_that_no_row_has_is_possible() -> None:
    codes = np.zeros(50, int)
    codes[:20] = 1
    odds = blended(np.zeros((1, 50, 3)), codes, [False])
    assert np.isfinite(odds).all()
    assert 1e-5 < scipy.special.softmax(odds[0])[2] < 0.01


def test_numbers_have_shares_of_their_own_for_each_output() -> None:
    rng = np.random.default_rng(3)
    scores = rng.standard_normal((2, N, 2))
    truth = np.stack([5 + scores[0, :, 0], 3 * scores[1, :, 1] - 2], axis=1)
    found, intercept = squared_shares(scores, truth, np.full(N, 1 / N))
    np.testing.assert_allclose(found, [[1, 0], [0, 3]], atol=1e-9)
    np.testing.assert_allclose(intercept, [5, -2], atol=1e-9)


def test_a_long_tail_does_not_say_that_all_members_fall_short() -> None:
    """One row of a value that nothing foretells, where the prediction is large."""
    rng = np.random.default_rng(4)
    level = np.exp(rng.standard_normal(400))
    truth = level + 0.3 * rng.standard_normal(400)
    members = np.stack([level, level + 0.3 * rng.standard_normal(400)])[:, :, None]
    share = np.full(400, 1 / 400)
    assert squared_shares(members, truth[:, None], share)[0].sum() == pytest.approx(1.0, abs=0.02)
    truth[level.argmax()] *= 5
    plain = scipy.optimize.nnls((members[:, :, 0] - members[:, :, 0].mean(axis=1)[:, None]).T, truth - truth.mean())[0]
    assert plain.sum() > 1.4
    assert squared_shares(members, truth[:, None], share)[0].sum() < 1 + 0.5 * (plain.sum() - 1)


@pytest.mark.parametrize("share", [0.6, 1.5])
def test_members_that_fall_short_or_go_too_far_are_put_right(share: float) -> None:
    rng = np.random.default_rng(5)
    level = rng.standard_normal(N)
    truth = share * level + 0.2 * rng.standard_normal(N)
    found, _ = squared_shares(level[None, :, None], truth[:, None], np.full(N, 1 / N))
    assert found[0, 0] == pytest.approx(share, rel=0.05)


def test_weights_are_copies() -> None:
    rng = np.random.default_rng(6)
    scores, noise = rng.standard_normal((2, 300, 1)), rng.standard_normal((300, 1))
    truth, codes = scores.sum(axis=0) + noise, (scores[0, :, 0] + noise[:, 0] > 1).astype(int)
    copies = rng.integers(0, 4, 300)
    weighted = copies / copies.sum()
    repeated = np.repeat(np.arange(300), copies)
    equal = np.full(len(repeated), 1 / len(repeated))
    numbers = squared_shares(scores, truth, weighted), squared_shares(scores[:, repeated], truth[repeated], equal)
    classes = (
        class_shares(scores, codes, weighted, [True, False]),
        class_shares(scores[:, repeated], codes[repeated], equal, [True, False]),
    )
    for one, other, close in ((*numbers, 1e-9), (*classes, 1e-4)):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=close)


def test_without_a_rare_class_members_decide_where_they_do() -> None:
    """Rows of another time are often less certain, not of other frequencies: a border of the rows that choose alone
    would misjudge them."""
    rng = np.random.default_rng(4)
    true = -2.0 + 3 * rng.standard_normal((N, 1))
    found, intercept = class_shares(np.stack([true, 0.5 * true]), drawn(true, rng), np.full(N, 1 / N), [True, False])
    assert (found >= 0).all()
    assert intercept == 0
