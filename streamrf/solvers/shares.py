"""How much of each member a blend takes, by rows that none of them has seen; never less than nothing.

Numbers by least squares. Classes by log loss: scores of members are added up to log odds, whatever they are themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

STIFFNESS = 1e-6  # of shares in units of the members' spread: classes that scores tell apart have finite ones
FIRMNESS = 0.03  # that holds intercepts near the frequencies of the classes, as so many of the rows would
SUM_FIRMNESS = 0.3  # likewise of the sum of shares of numbers, in units of what residuals leave in doubt
RARE, LEAST_FREQUENCY = 0.05, 1e-4  # shares of the rows: of a class that needs an intercept; of one that no row has


def squared_shares(scores: np.ndarray, truth: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(members, outputs) and intercepts (outputs,), from scores (members, n, outputs) of rows that count for ``share``.
    Outputs have shares of their own, as their units differ."""
    count = np.sqrt(share)[:, None]
    centre, level = np.einsum("n,mnk->mk", share, scores), share @ truth
    scores, truth = (scores - centre[:, None]) * count, (truth - level) * count
    found = [_near_one(scores[:, :, k].T, truth[:, k], share) for k in range(truth.shape[1])]
    shares = np.stack(found, axis=1)
    return shares, level - (shares * centre).sum(axis=0)


def _near_one(Z: np.ndarray, y: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Shares (members,) whose sum stays near one where large residuals meet large predictions: of a target with a long
    tail, a few of the largest values decide by chance how far members fall short of all others."""
    found = scipy.optimize.nnls(Z, y)[0]
    predicted, residuals = Z @ found, y - Z @ found
    moved = float(predicted @ predicted)
    if not moved > 0:
        return found
    counted = np.maximum(share, np.finfo(np.float64).tiny)  # rows of no weight are zero in both
    doubt = np.sqrt(SUM_FIRMNESS * float((predicted * residuals) ** 2 @ (1 / counted)) / moved)
    return scipy.optimize.nnls(np.vstack([Z, np.full(Z.shape[1], doubt)]), np.append(y, doubt))[0]


def class_shares(
    scores: np.ndarray, codes: np.ndarray, share: np.ndarray, log_odds: Sequence[bool]
) -> tuple[np.ndarray, np.ndarray]:
    """(members,) and intercepts (outputs,): classes have the same shares, as their scores are compared.

    Where a class is rare, whose squares all lie near the lowest, a member says how far a row is from the frequencies of
    the classes, in ``log_odds`` or in squares, and the intercepts are these frequencies or close to them: no share
    stands for how rare a class is. Elsewhere there are none, and members decide where each of them does."""
    members, _, outputs = scores.shape
    level, flat = _frequencies(codes, share, outputs)
    centres = np.stack([level if each else flat for each in log_odds])
    scores = scores - centres[:, None]
    spread = np.sqrt(np.einsum("n,mnk->m", share, scores**2) / outputs)
    spread = np.where(spread > 0, spread, 1.0)
    Z, rows = scores / spread[:, None, None], np.arange(len(codes))
    stiff = np.concatenate([np.full(members, STIFFNESS), np.full(outputs, FIRMNESS)])

    def loss(place: np.ndarray) -> tuple[float, np.ndarray]:
        odds = level + place[members:] + np.einsum("m,mnk->nk", place[:members], Z)
        each = np.concatenate([-odds / 2, odds / 2], axis=1) if outputs == 1 else odds
        logs = scipy.special.log_softmax(each, axis=1)
        slopes = np.exp(logs)
        slopes[rows, codes] -= 1.0
        slopes *= share[:, None]
        slopes = (slopes[:, 1:] - slopes[:, :1]) / 2 if outputs == 1 else slopes
        value = -float(logs[rows, codes] @ share) + float(stiff @ place**2)
        return value, np.concatenate([np.einsum("mnk,nk->m", Z, slopes), slopes.sum(axis=0)]) + 2 * stiff * place

    start = np.concatenate([np.full(members, 1.0 / members), np.zeros(outputs)])
    bounds = [(0.0, None)] * members + [(None, None) if level.any() else (0.0, 0.0)] * outputs
    found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    taken = found[:members] / spread
    return taken, level + found[members:] - taken @ centres


def _frequencies(codes: np.ndarray, share: np.ndarray, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Of classes, as log odds and as least squares would score them; zeros where none is rare."""
    found = np.maximum(np.bincount(codes, share, max(outputs, 2)), LEAST_FREQUENCY)
    if found.min() >= RARE:
        return np.zeros(outputs), np.zeros(outputs)
    if outputs == 1:
        return np.log(found[1:] / found[:1]), found[1:] - found[:1]
    return np.log(found), found
