"""What the learning of a map may be told. A user need set none of it: None leaves the choice to the map."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Learning:
    """``landmarks``, ``iterations``, ``steps`` and ``decay`` are n, T, S and lambda of Li et al. (2019)."""

    landmarks: int | None = None  # rows that are compared with one another at a step
    iterations: int | None = None  # times that weights (or the machine) are fitted anew
    steps: int | None = None  # of descent after each fit
    decay: float | None = None  # of the weights, times the number of frequencies
    eta: float | None = None  # share of the kernel loss in a loss that looks at targets
    loss: str | None = None  # of the prediction: squared, hinge, logistic
    task: str | None = None  # regression or classification; told from the targets if it is not given


UNTOLD = Learning()
