"""The sections on what goes wrong: runs with faults, and files changed at random."""

from __future__ import annotations

from typing import Any

from benchlib import faults, fuzz

Found = dict[str, dict[str, Any]]


def faulty_runs(found: Found) -> list[str]:
    return [
        "`train`, `predict` and `update`, here and on two workers, each with one to three faults at random moments. A",
        "run must end with the bits of an undisturbed one, or in one sentence, after which the same command without",
        "faults gives those bits. How the runs with each fault ended:", "",
        *(f"- {line}" for line in faults.lines(found["faults"]["cells"])),
    ]  # fmt: skip


def changed_files(found: Found) -> list[str]:
    return [
        "Models, statistics, checkpoints and tables are changed byte by byte, or in their content with every digest",
        "made right again, and then used: refused in one sentence, the same as before, or, where no checksum covers",
        "what was changed, other.", "", *(f"- {line}" for line in fuzz.lines(found["fuzz"]["cells"])),
    ]  # fmt: skip
