"""The peers: programs that run in the peers' environment, know nothing of streamrf, and print one line of JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchlib.peers import gradient, kernels, loops, trees
from benchlib.peers.common import Job


@dataclass(frozen=True)
class Peer:
    """A peer: what the page calls it, the package it needs, what trains it and returns its error, and its searches."""

    title: str
    package: str
    train: Callable[[Job], float]
    searches: tuple[str, ...]


FOURIER, SGD = ("tune-fourier",), ("tune-fourier", "tune-sgd")
PEERS = {
    "loop-float32": Peer("numpy loop, float32: `G += Z.T @ Z`", "numpy", loops.float32, FOURIER),
    "loop-ssyrk": Peer("numpy loop, float32, in-place `ssyrk`", "scipy", loops.ssyrk, FOURIER),
    "loop-float64": Peer("numpy loop, float64: `G += Z.T @ Z`", "numpy", loops.float64, FOURIER),
    "intelex": Peer("scikit-learn-intelex `IncrementalRidge`", "scikit-learn-intelex", loops.intelex, FOURIER),
    "dask-array": Peer("dask.array `Z.T @ Z`", "dask", loops.dask_array, FOURIER),
    "rbfsampler-sgd": Peer("`RBFSampler` + `SGD.partial_fit`", "scikit-learn", gradient.sklearn, SGD),
    "dask-ml-incremental": Peer("dask-ml `Incremental(SGD)`", "dask-ml", gradient.dask_ml, SGD),
    "nystroem-ridge": Peer("`Nystroem` + `Ridge`", "scikit-learn", kernels.nystroem, (*FOURIER, "tune-nystroem")),
    "lightgbm": Peer("LightGBM", "lightgbm", trees.lightgbm, ("tune-lightgbm",)),
    "xgboost": Peer("XGBoost", "xgboost", trees.xgboost, ("tune-xgboost",)),
    "xgboost-external": Peer("XGBoost, external memory", "xgboost", trees.xgboost_external, ("tune-xgboost",)),
    "exact": Peer("exact kernel machine", "scikit-learn", kernels.exact, ("tune-exact",)),
}
SEARCHES: dict[str, Callable[[Job], dict[str, Any]]] = {
    "tune-fourier": kernels.tune_fourier, "tune-sgd": gradient.tune, "tune-nystroem": kernels.tune_nystroem,
    "tune-exact": kernels.tune_exact, "tune-lightgbm": trees.tune_lightgbm, "tune-xgboost": trees.tune_xgboost,
}  # fmt: skip
