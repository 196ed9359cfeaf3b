"""The parameters of the estimators as type checkers and editors see them.

Written by scripts/make_api_reference from the settings of a recipe; a test compares the two.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class Parameters(TypedDict, total=False):
    """All but ``D``, which may come by position."""

    kernel: str
    length_scale: float | None
    map: Literal[
        "auto", "mc", "orthogonal", "sorf", "fastfood", "halton", "sobol", "lattice", "digital-net",
        "moment-matched", "weighted", "aligned", "ekal-sample", "ekal-cluster", "supervised", "landmarks",
        "binning", "trees", "blend", "any"
    ]  # fmt: skip
    grids: int | None
    table_bits: int | None
    form: Literal["auto", "phase", "pairs"]
    metric: Literal["auto", "none", "diagonal", "full", "learned"]
    landmarks: int | None
    learning_iterations: int | None
    learning_steps: int | None
    weight_decay: float | None
    eta: float | None
    prediction_loss: Literal["auto", "squared", "hinge", "logistic"]
    scaling: Literal["auto", "none", "standard", "minmax", "quantile", "log", "pca"]
    bits: Literal["auto", "7", "8", "12", "20", "float32", "float64"]
    nan: Literal["auto", "error", "drop"]
    ridge: float | None
    solver: Literal["auto", "cholesky", "cg", "newton", "sgd", "boosting", "stacking"]
    preconditioner: Literal["auto", "sample", "nystrom"]
    loss: Literal["squared", "squared-hinge", "logistic", "huber", "quantile", "hinge"]
    quantile: float
    huber_epsilon: float
    class_weight: Literal["balanced"] | dict[Any, float] | None
    threshold: float | str | None
    epochs: int | None
    shards: int | None
    holdout: float | None
    cv: int | None
    pilot: Literal["auto", "none"]
    budget: float | str | None
    gamma: float | None
    random_state: Any
    threads: int | None
    memory: int | str | None
    engine: Any | None
    verbose: int
