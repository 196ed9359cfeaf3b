"""How many random features an error bound asks for (Rahimi and Recht 2007, Claim 1), and what error it allows.

Both bounds are for independent draws, one cosine at a random phase each; pairs of a cosine and a sine count as two.
They are upper bounds and generous: measured errors are many times smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import brentq

from streamrf.features.kernels import Kernel
from streamrf.support.errors import InputError

_TINIEST, _HUGEST = 1e-12, 1e12  # errors between which a bound is inverted


@dataclass(frozen=True)
class Bound:
    """The features that keep every error (or one error) below epsilon with probability 1 - delta, and why."""

    D: int
    epsilon: float
    delta: float
    uniform: bool  # over all pairs of points at once; otherwise of any one pair
    note: str


def _check(epsilon: float, delta: float) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InputError(f"epsilon must be a positive number, not {epsilon}")
    if not 0 < delta < 1:
        raise InputError(f"delta is a probability between 0 and 1, not {delta}")


def log_failure_uniform(D: float, epsilon: float, d: int, diameter: float, sigma: float) -> float:
    """Log of 2^8 (sigma diameter / epsilon)^2 exp(-D epsilon^2 / (4 (d + 2))): Claim 1; above 0 it says nothing."""
    return 8 * math.log(2) + 2 * math.log(sigma * diameter / epsilon) - D * epsilon**2 / (4 * (d + 2))


def features_uniform(epsilon: float, delta: float, d: int, diameter: float, sigma: float) -> int:
    """The smallest D for which sup |z(x)'z(y) - k(x, y)| over a set of this diameter is below epsilon, but for delta.

    ``sigma`` is the root of the spectral measure's second moment E[w'w].
    """
    _check(epsilon, delta)
    if not math.isfinite(sigma):
        raise InputError("Claim 1 needs a finite second moment of the spectral measure: use features_pointwise")
    if sigma * diameter == 0:
        return 1
    excess = 8 * math.log(2) + 2 * math.log(sigma * diameter / epsilon) - math.log(delta)
    return max(1, math.ceil(excess * 4 * (d + 2) / epsilon**2))


def epsilon_uniform(D: int, delta: float, d: int, diameter: float, sigma: float) -> float:
    """The error that Claim 1 allows at D features: the inverse of ``features_uniform``."""
    _check(1.0, delta)
    if not math.isfinite(sigma):
        raise InputError("Claim 1 needs a finite second moment of the spectral measure: use epsilon_pointwise")
    if sigma * diameter == 0:
        return 0.0

    def excess(log_epsilon: float) -> float:
        return log_failure_uniform(D, math.exp(log_epsilon), d, diameter, sigma) - math.log(delta)

    return math.exp(brentq(excess, math.log(_TINIEST), math.log(_HUGEST), xtol=1e-14))


def features_pointwise(epsilon: float, delta: float) -> int:
    """The smallest D for which the error at one pair of points is below epsilon, but for delta (Hoeffding).

    The exponent is D epsilon^2 / 8: a product of two features is in [-2, 2]. The paper prints 4.
    """
    _check(epsilon, delta)
    return max(1, math.ceil(8.0 * math.log(2.0 / delta) / epsilon**2))


def epsilon_pointwise(D: int, delta: float) -> float:
    """The error that Hoeffding's inequality allows at one pair of points: the inverse of ``features_pointwise``."""
    _check(1.0, delta)
    return math.sqrt(8.0 * math.log(2.0 / delta) / D)


def required_features(kernel: Kernel, d: int, diameter: float, epsilon: float, delta: float = 0.05) -> Bound:
    """What the theory asks of D for this kernel: Claim 1 where the spectral measure has a second moment."""
    sigma = math.sqrt(kernel.second_moment(d))
    if math.isfinite(sigma):
        D = features_uniform(epsilon, delta, d, diameter, sigma)
        return Bound(D, epsilon, delta, True, "all pairs of points at once (Rahimi and Recht, Claim 1)")
    note = (
        f"each pair of points alone (Hoeffding): the spectral measure of the {kernel.label} kernel has no second "
        "moment, so Claim 1 does not cover it"
    )
    return Bound(features_pointwise(epsilon, delta), epsilon, delta, False, note)
