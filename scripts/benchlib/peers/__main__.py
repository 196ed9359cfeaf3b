"""`python -m benchlib.peers NAME TRAIN TEST SETTINGS`: run a peer, or its search, and print what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchlib.peers import gradient, kernels, loops, trees
from benchlib.peers.common import Job
from benchlib.running import high_water_mark

PEERS: dict[str, Callable[[Job], float]] = {
    "rbfsampler-sgd": gradient.sklearn,
    "dask-ml-incremental": gradient.dask_ml,
    "nystroem-ridge": kernels.nystroem,
    "exact": kernels.exact,
    "intelex": loops.intelex,
    "loop-float64": loops.float64,
    "loop-float32": loops.float32,
    "loop-ssyrk": loops.ssyrk,
    "dask-array": loops.dask_array,
    "lightgbm": trees.lightgbm,
    "xgboost": trees.xgboost,
    "xgboost-external": trees.xgboost_external,
}
SEARCHES: dict[str, Callable[[Job], dict[str, Any]]] = {
    "tune-fourier": kernels.tune_fourier,
    "tune-sgd": gradient.tune,
    "tune-nystroem": kernels.tune_nystroem,
    "tune-exact": kernels.tune_exact,
    "tune-lightgbm": trees.tune_lightgbm,
    "tune-xgboost": trees.tune_xgboost,
}


def main(name: str, train: str, test: str, text: str) -> None:
    given = json.loads(text)
    job = Job(Path(train), Path(test), given["classes"], given["settings"], given["threads"])
    if name in SEARCHES:
        found = SEARCHES[name](job)
    else:
        error = PEERS[name](job)
        found = {"error": error, "train": job.seconds, "curve": job.curve, "scores": job.scores}
    print(json.dumps({**found, "peak": high_water_mark("self")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
