"""Sections that put the papers' figures beside ours."""

from __future__ import annotations

from typing import Any

from benchlib.li import COUNTS
from benchlib.page.words import joined, of_task, seconds, table
from benchlib.results import Cell
from benchlib.sets import SETS
from benchlib.table1 import EXACT_IS_TOO_LARGE, PAPER

Found = dict[str, dict[str, Any]]
COLUMNS = ("streamrf", "streamrf-binning", "exact")


def percent(cell: Cell) -> float:
    """Table 1 counts wrong classes, or the RMS error over the norm of the targets."""
    scores = cell.get("scores", {})
    return 100 * (scores["relative_error"] if "relative_error" in scores else cell["error"])


def table1(found: Found) -> list[str]:
    cells = found["table1"]["cells"]
    rows = []
    for name, paper in PAPER.items():
        if mine := of_task(cells, name):
            fourier, binning, exact = paper
            rows.append([f"{SETS[name].title}: paper", f"{fourier[1]} %, {fourier[2]}", f"{binning[1]} %, {binning[2]}",
                         f"{exact[0]} %, {exact[1]}"])  # fmt: skip
            rows.append([f"ours, D = {fourier[0]}, P = {binning[0]}", *(_ours(mine, name, each) for each in COLUMNS)])
    heads = ("data", "Fourier + least squares", "binning + least squares", "exact machine")
    return [
        "Test error and training time at the paper's D and P, the search for widths included. Errors of regression",
        "are relative (RMS error over the norm of the targets). Census is a stand-in with other columns and another",
        "target: its figures cannot be compared with the paper's. KDD Cup 99 is the 10 % file, with its",
        "labelled test file. The paper's times are of 2007. The exact machine is `SVC` or `KernelRidge` of",
        "scikit-learn, without its search.",
        "", *table(heads, rows), "", *_verdict(cells),
    ]  # fmt: skip


def _ours(mine: dict[str, Cell], name: str, column: str) -> str:
    if column not in mine:
        return "not tried" if name in EXACT_IS_TOO_LARGE else "-"
    cell = mine[column]
    if not cell["ok"]:
        return cell["why"]
    spent = cell["train"] + (cell["search"] if column != "exact" else 0)
    return f"{percent(cell):.1f} %, {seconds(spent)}"


def _verdict(cells: dict[str, Cell]) -> list[str]:
    """Where we are not as good as the paper, to a tenth of a per cent."""
    better, worse = [], []
    for name, paper in PAPER.items():
        for column, figures, word in zip(COLUMNS, paper[:2], ("Fourier", "binning"), strict=False):
            cell = cells.get(f"{name}/{column}")
            if cell and cell["ok"] and name != "census":
                good = round(percent(cell), 1) <= figures[1]
                (better if good else worse).append(f"{name} with {word} ({percent(cell):.1f} % against {figures[1]} %)")
    lines = [f"At most the paper's error: {joined(better)}."] if better else []
    return lines + ([f"Above the paper's error: {joined(worse)}."] if worse else [])


# -- Li et al.


def tables23(found: Found) -> list[str]:
    cells = found["tables23"]["cells"]
    return [
        "Gaussian kernel, width and scaling as in the paper; means over draws. Table 2 is the relative error of",
        "the kernel matrix, Table 3 the test error of a linear machine on 200 frequencies (RMSE, or % wrong). Each",
        "entry is ours / the paper's. `scripts/bench tables23` measures them.",
        "", "### Table 2: frequencies that are drawn", "", *_maps(cells), "",
        "### Table 2: frequencies that are learned", "", *_learned(cells), "", "### Table 3", "", *_table3(cells),
    ]  # fmt: skip


def _parts(cells: dict[str, Cell], kind: str) -> dict[str, Cell]:
    return {key.partition("/")[2]: cell for key, cell in cells.items() if key.startswith(f"{kind}/") and cell["ok"]}


def _maps(cells: dict[str, Cell]) -> list[str]:
    entries = [entry for cell in _parts(cells, "maps").values() for entry in cell["found"]["table2"]]
    if not entries:
        return ["Nothing measured."]
    columns = list(dict.fromkeys(entry["column"] for entry in entries))
    rows = []
    for name, r in dict.fromkeys((entry["data"], entry["r"]) for entry in entries):
        line = {e["column"]: e for e in entries if (e["data"], e["r"]) == (name, r)}
        rows.append(
            [f"{name}, r = {r}", *(_pair(line[column]["ours"]["mean"], line[column]["paper"]) for column in columns)]
        )
    known = [entry for entry in entries if entry["paper"] is not None]
    good = sum(entry["ours"]["mean"] <= 1.1 * entry["paper"] for entry in known)
    axes = sum(entry.get("axes", entry["ours"])["mean"] <= 1.1 * entry["paper"] for entry in known)
    return [*table(("data", *columns), rows), "",
            f"Within 10 % of the paper or better in {good} of {len(known)} entries, in {axes} with the principal axes"
            " of a sample where a map can use them."]  # fmt: skip


def _pair(ours: float, paper: float | None) -> str:
    return f"{ours:.3f}" if paper is None else f"{ours:.3f} / {paper:.2f}"


def _learned(cells: dict[str, Cell]) -> list[str]:
    rows, met, count = [], 0, 0
    for name, cell in _parts(cells, "learned").items():
        for key, line in cell["found"]["table 2"].items():
            count_of = int(key.rsplit(" ", 1)[1])
            paper = dict(zip(COUNTS, cell["paper"]["table 2"], strict=False)).get(count_of, (None,) * 3)
            best = {kind: min(line[f"{kind} fixed"], line[f"{kind} fresh"]) for kind in ("SAMPLE", "CLUSTER")}
            pairs = [(line["MC"], paper[0]), (best["SAMPLE"], paper[1]), (best["CLUSTER"], paper[2])]
            rows.append([f"{name}, r = {key.rsplit(' ', 1)[1]}", *(_pair(*pair) for pair in pairs)])
            met, count = met + sum(b is not None and round(a, 2) <= b for a, b in pairs[1:]), count + 2
    return [*table(("data", "MC", "SAMPLE", "CLUSTER"), rows), "",
            f"At most the paper's error, rounded as it rounds, in {met} of {count} learned entries (the better of fixed"
            " and fresh landmarks)."]  # fmt: skip


def _table3(cells: dict[str, Cell]) -> list[str]:
    columns, rows, good, bad = ("MC", "SAMPLE", "CLUSTER", "SUPERVISE"), [], [], []
    for name, cell in _parts(cells, "learned").items():
        for line in cell["found"]["table 3"].values():
            paper = cell["paper"]["table 3"] or (float("nan"),) * len(columns)
            rows.append(
                [name, *(f"{line[column]:.3f} / {value:g}" for column, value in zip(columns, paper, strict=True))]
            )
            (good if line["SUPERVISE"] <= paper[3] else bad).append(name)
    words = [f"SUPERVISE is at most the paper's error on {joined(good)}."] if good else []
    words += [f"It is above it on {joined(bad)}."] if bad else []
    return [*table(("data", *columns), rows), "", " ".join(words)]
