"""`python -m benchlib.peers NAME TRAIN TEST SETTINGS`: run a peer, or its search, and print what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchlib.peers import PEERS, SEARCHES
from benchlib.peers.common import Job
from benchlib.running import high_water_mark


def main(name: str, train: str, test: str, text: str) -> None:
    given = json.loads(text)
    job = Job(Path(train), Path(test), given["classes"], given["settings"], given["threads"])
    if name in SEARCHES:
        found = SEARCHES[name](job)
    else:
        error = PEERS[name].train(job)
        found = {"error": error, "train": job.seconds, "curve": job.curve, "scores": job.scores}
    print(json.dumps({**found, "peak": high_water_mark("self")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
