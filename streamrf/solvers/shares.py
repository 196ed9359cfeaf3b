"""How much of each member a blend takes, by rows that none of them has seen; never less than nothing.

Numbers by least squares. Classes by log loss: scores of members are added up to log odds, whatever they are themselves.
"""

from __future__ import annotations

import numpy as np
import scipy

STIFFNESS = 1e-6  # of shares in units of the members' spread: classes that scores tell apart have finite ones


def squared_shares(scores: np.ndarray, truth: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(members, outputs) and intercepts (outputs,), from scores (members, n, outputs) of rows that count for ``share``.
    Outputs have shares of their own, as their units differ."""
    count = np.sqrt(share)[:, None]
    centre, level = np.einsum("n,mnk->mk", share, scores), share @ truth
    scores, truth = (scores - centre[:, None]) * count, (truth - level) * count
    found = [scipy.optimize.nnls(scores[:, :, k].T, truth[:, k])[0] for k in range(truth.shape[1])]
    shares = np.stack(found, axis=1)
    return shares, level - (shares * centre).sum(axis=0)


def class_shares(scores: np.ndarray, codes: np.ndarray, share: np.ndarray) -> np.ndarray:
    """(members,): classes have the same shares, as their scores are compared, and no intercepts: few rows of each class
    are wrong, and intercepts would follow each of them."""
    members, _, outputs = scores.shape
    spread = np.sqrt(np.einsum("n,mnk->m", share, scores**2) / outputs)
    spread = np.where(spread > 0, spread, 1.0)
    Z, rows = scores / spread[:, None, None], np.arange(len(codes))

    def loss(place: np.ndarray) -> tuple[float, np.ndarray]:
        odds = np.einsum("m,mnk->nk", place, Z)
        each = np.concatenate([-odds / 2, odds / 2], axis=1) if outputs == 1 else odds
        logs = scipy.special.log_softmax(each, axis=1)
        slopes = np.exp(logs)
        slopes[rows, codes] -= 1.0
        slopes *= share[:, None]
        slopes = (slopes[:, 1:] - slopes[:, :1]) / 2 if outputs == 1 else slopes
        value = -float(logs[rows, codes] @ share) + STIFFNESS * float(place @ place)
        return value, np.einsum("mnk,nk->m", Z, slopes) + 2 * STIFFNESS * place

    start, bounds = np.full(members, 1.0 / members), [(0.0, None)] * members
    return scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x / spread
