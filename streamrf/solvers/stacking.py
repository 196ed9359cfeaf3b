"""A blend: each member is solved by its own solver, then rows that no member has seen say how much of each is taken.

The shares are not negative: least squares with an intercept for numbers, log loss for classes, on the rows that choose.
The figures that are reported are those of the rows that judge, which neither members nor shares have seen.

Of small tables a tenth of the rows is too few to choose by. There, rows take turns: each member is solved several
times, another part of the rows chooses each time, all rows but the judges say what the shares are, and the mean of the
turns is the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from streamrf.data.source import Block, joined
from streamrf.data.split import CHOOSE, ORDER, Split
from streamrf.features.base import FeatureMap
from streamrf.features.blend import BlendMap
from streamrf.features.pipeline import Pipeline, map_from_parts
from streamrf.features.settings import BINNING, BLEND, LANDMARKS, TREES
from streamrf.features.targets import REGRESSION
from streamrf.features.trees.map import TreesMap
from streamrf.solvers.base import Fitted, Run, Solver
from streamrf.solvers.binning import RIDGE, Binning, table_of
from streamrf.solvers.boosting import Boosted
from streamrf.solvers.cholesky import Cholesky
from streamrf.solvers.judging import by_role, calibrate, class_codes, judge, shares, weighed
from streamrf.solvers.passes import Kept, Passes
from streamrf.solvers.plan import PASS, SOLVE, STAGES, Part, Plan, Sizes, holdout_parts
from streamrf.solvers.settings import SolverSettings
from streamrf.solvers.shares import class_shares, squared_shares
from streamrf.statistics.base import S, Statistic
from streamrf.statistics.holdout import HeldRows
from streamrf.statistics.scores import Calibration, Weights
from streamrf.support.storage.safejson import JSON

MEMBER, ROUTE, DONE, TOLD, MAPS, LAMBDA = "member", "route", "done", "told", "maps", "lambda"
FEWER_GRIDS = "lower `grids` or `D`"
LEAST_SHARE = 0.01  # of what the first of them moves scores by: members of less are left out
SMALL_ROWS, TURNS = 2000, 5  # tables of which rows take turns


SOLVERS: dict[str, type[Solver]] = {LANDMARKS: Cholesky, BINNING: Binning, TREES: Boosted}  # of members, in their order


def member_recipe(recipe: SolverSettings, kind: str) -> SolverSettings:
    """Of one member of a blend."""
    if kind == LANDMARKS:
        return replace(recipe, map=LANDMARKS, grids=None, table_bits=None, solver="cholesky")
    bare = replace(recipe, map=kind, kernel="auto", bits="8", ridge=None, metric="auto", solver=SOLVERS[kind].name)
    return bare if kind == BINNING else replace(bare, grids=None, table_bits=None)


def turns_of(split: Split, rows: int, holdout: float | None) -> int:
    """How often each member is solved: once, or by turns where rows are few and nobody has said which are held out."""
    asked = holdout is not None or split.key == ORDER
    return 1 if asked or rows >= SMALL_ROWS or not (split.judge > 0 and split.choose > 0) else TURNS


class Stacking(Solver):
    """Landmarks by one pass of exact sums, random binning by conjugate gradients, trees; then shares of each."""

    name = "stacking"
    maps = BLEND

    @classmethod
    def plan(cls, sizes: Sizes) -> Plan:
        plans, turns = cls.member_plans(sizes), _turns(sizes)
        larger = max(plans.values(), key=lambda plan: plan.projected)
        grids, slots = table_of(replace(sizes, recipe=member_recipe(sizes.recipe, BINNING)))
        finished = turns * 8 * sizes.recipe.D * (sizes.source.n_features + 2 * sizes.outputs)
        unseen = turns * 4 * grids * min(slots, sizes.rows) * sizes.outputs
        parts = {
            **larger.parts, "finished members": Part(finished, (PASS, SOLVE), FEWER_GRIDS),
            "unseen weights": Part(unseen, (SOLVE,), FEWER_GRIDS),
        }  # fmt: skip
        if turns > 1:
            parts |= holdout_parts(replace(sizes, held=sizes.rows))  # every row chooses once
        return replace(
            larger, solver=cls.name, why="a blend: " + "; ".join(plan.why for plan in plans.values()), parts=parts,
            passes=turns * sum(plan.passes for plan in plans.values()) + (turns > 1),
            span_rows=min(plan.span_rows for plan in plans.values()),
            span_bytes=min(plan.span_bytes for plan in plans.values()), cache=plans[BINNING].cache, folds=0,
            sizes=sizes,
        )  # fmt: skip

    @staticmethod
    def member_plans(sizes: Sizes) -> dict[str, Plan]:
        """Of each member, by its map."""
        return {
            kind: solver.plan(replace(sizes, recipe=member_recipe(sizes.recipe, kind), folds=0))
            for kind, solver in SOLVERS.items()
        }

    @classmethod
    def estimate(cls, plan: Plan) -> Mapping[str, float]:
        found = [SOLVERS[kind].estimate(each) for kind, each in cls.member_plans(plan.sizes).items()]
        turns = _turns(plan.sizes)
        return {stage: turns * sum(each.get(stage, 0.0) for each in found) for stage in STAGES[1:]}

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        assert isinstance(self.pipeline.map, BlendMap)
        counted = run.plan.sizes.counting_rows if run.split.counted is None else run.split.counted
        self.turns = turns_of(run.split, counted, run.asked.holdout)
        members = tuple(member for member in self.pipeline.map.members for _ in range(self.turns))
        self.map = BlendMap(members, self.pipeline.map.outputs)  # all turns of a member side by side

    def fit(self) -> Fitted:
        kept = self.passes.kept
        done = Finished.of(kept) if kept else Finished()
        for number in range(len(done.told)):
            self._now_has(number, done.map_of(number))
        for number in range(len(done.told), len(self.map.members)):
            fitted = self._member(number, done)
            done = done.also(fitted)
            self._now_has(number, done.map_of(number))
        if self.turns == 1:
            return self._blended(done, fitted.choosing, fitted.judges, fitted.rows)
        split = self.run.split.all_choose()
        held = MemberPasses(self.passes, len(self.map.members), done).sum(HeldRows(self.pipeline.coding, split))
        rows = held.rows
        return self._blended(done, *by_role(split, held), rows)

    def _now_has(self, number: int, map: FeatureMap | None) -> None:
        """Which features a member has may be known only once it is solved."""
        if map is not None:
            members = list(self.map.members)
            members[number] = replace(members[number], map=map)
            self.map = BlendMap(tuple(members), self.map.outputs)

    def _member(self, number: int, done: Finished) -> Fitted:
        solver = SOLVERS[self.map.members[number].map.kind]
        return solver(self._run(number, MemberPasses(self.passes, number, done))).fit()

    def _run(self, number: int, passes: MemberPasses) -> Run:
        member, run = self.map.members[number], self.run
        kind, served = member.map.kind, member.map.can_serve_unrounded
        asked, recipe = member_recipe(run.asked, kind), member_recipe(run.recipe, kind)
        plan = self.member_plans(run.plan.sizes)[kind]
        pipeline = replace(self.pipeline, scaling=member.scaling, map=member.map, unrounded=served)
        if kind == BINNING:
            plan = replace(plan, cache=run.plan.cache)
        if kind != LANDMARKS:
            recipe = replace(recipe, ridge=RIDGE)
        if kind == TREES:  # whose mean is better the less alike they are
            recipe = replace(recipe, seed=recipe.seed + number % self.turns)
        return replace(
            run, asked=asked, recipe=recipe, pipeline=pipeline, plan=plan, passes=cast(Passes, passes), stacked=True,
            split=self._split(number % self.turns),
        )  # fmt: skip

    def _split(self, turn: int) -> Split:
        return self.run.split if self.turns == 1 else self.run.split.turned(turn, self.turns)

    # -- shares

    def _blended(self, done: Finished, choosing: Block | None, judges: Block | None, rows: int) -> Fitted:
        with self.run.timed("solve"):
            kinds = len(self.map.members) // self.turns
            if choosing is None:  # nothing to choose by: all count alike
                alike = np.full((kinds, self.map.outputs), 1 / kinds)
                weights = self._weights(done, alike, np.zeros(self.map.outputs))
                return self._fitted(rows, done, self._with(done, FINAL), weights, None, None)
            parts = self._by_turns(choosing)
            scores, unseen = self._unseen_scores(done, parts)
            found, intercept = self._shares(scores, parts)
            used = _used(found, scores)
            if 0 < len(used) < len(found):
                done = self._leave(used, done)
                scores, unseen = self._unseen_scores(done, parts)
                found, intercept = self._shares(scores, parts)
            weights = self._weights(done, found, intercept)
            apart = [(self._weights(done, found, intercept, turn), part) for turn, part in enumerate(parts)]
            known = Calibration.of_log_odds(self.map.outputs) if self._gives_log_odds else None
            threshold = self.recipe.threshold
            calibration = calibrate(unseen, apart, self.threads, self.run.weighting, threshold, known)
            metrics = None
            if judges is not None:
                metrics = judge(unseen, weights, judges, calibration, self.run.split, self.threads)
            fitted = self._fitted(rows, done, self._with(done, FINAL), weights, calibration, metrics)
        return replace(fitted, judges=judges)

    def _by_turns(self, choosing: Block) -> list[Block]:
        """The rows that choose in each turn."""
        if self.turns == 1:
            return [choosing]
        return [choosing.take(self._split(turn).roles(choosing) == CHOOSE) for turn in range(self.turns)]

    @property
    def _gives_log_odds(self) -> bool:
        """With trees among its members, sums of scores are log odds already."""
        return any(isinstance(member.map, TreesMap) for member in self.map.members)

    def _unseen_scores(self, done: Finished, parts: list[Block]) -> tuple[np.ndarray, Pipeline]:
        """(kinds, n, outputs): of the rows of each turn, by members that have not seen them."""
        unseen = self._with(done, UNSEEN)
        assert isinstance(unseen.map, BlendMap)
        members = iter(unseen.map.members)
        scores = [
            np.concatenate([next(members).scores(part.X, self.threads) for part in parts])
            for _ in range(len(unseen.map.members) // self.turns)
        ]
        return np.stack(scores), unseen

    def _shares(self, scores: np.ndarray, parts: list[Block]) -> tuple[np.ndarray, np.ndarray]:
        """(kinds, outputs), and an intercept for each output."""
        rows = weighed(self.pipeline.coding, joined(parts), self.run.weighting)
        if self.pipeline.coding.task == REGRESSION:
            return squared_shares(scores, rows.targets, shares(rows))
        log_odds = [isinstance(member.map, TreesMap) for member in self.map.members[:: self.turns]]
        found, intercept = class_shares(scores, class_codes(rows.targets), shares(rows), log_odds)
        return np.repeat(found[:, None], self.map.outputs, axis=1), intercept

    def _leave(self, used: np.ndarray, done: Finished) -> Finished:
        """Only these kinds: others bring nothing, and would cost their time in every prediction."""
        numbers = (used[:, None] * self.turns + np.arange(self.turns)).ravel()
        left = [member.map.kind for number, member in enumerate(self.map.members) if number not in numbers]
        self.reporter.detail(f"the rows that choose take nothing of {' and '.join(dict.fromkeys(left))}: left out")
        self.map = BlendMap(tuple(self.map.members[number] for number in numbers), self.map.outputs)
        return done.of_members(numbers)

    def _weights(self, done: Finished, found: np.ndarray, intercept: np.ndarray, turn: int | None = None) -> Weights:
        """Of the mean of all turns, or of one of them. The lambda that people are told is that of the landmarks."""
        of_turns = np.full(self.turns, 1 / self.turns) if turn is None else np.eye(self.turns)[turn]
        coefficients = np.concatenate([share * np.diag(each) for each in found for share in of_turns])
        return Weights(coefficients, intercept, float(done.told[0][LAMBDA]))

    def _with(self, done: Finished, when: str) -> Pipeline:
        """The pipeline with trained members."""
        members = tuple(
            member.trained(*(done.arrays[_key(number, when, what)] for what in ("coefficients", "intercept")))
            for number, member in enumerate(self.map.members)
        )
        return replace(self.pipeline, map=BlendMap(members, self.map.outputs))

    def _fitted(
        self, rows: int, done: Finished, pipeline: Pipeline, weights: Weights, calibration: Any, metrics: Any
    ) -> Fitted:
        sums = (done.arrays[_key(number, FINAL, "digest")].tobytes() for number in range(len(self.map.members)))
        digest = hashlib.sha256(b"".join(sums))
        shares = self.map.shares(weights.coefficients)
        told = [self._told(first, shares, done) for first in range(0, len(self.map.members), self.turns)]
        metadata: dict[str, Any] = {}
        for turn in reversed(range(self.turns)):  # the facts are those of the first turn, as lambda is
            for said in done.told[turn :: self.turns]:
                metadata |= {name: value for name, value in said.items() if name != LAMBDA}
        metadata |= {"holdout": metrics, "members": told}
        return Fitted(weights, rows, digest.hexdigest(), calibration, None, metadata, pipeline=pipeline)

    def _told(self, first: int, shares: np.ndarray, done: Finished) -> dict[str, Any]:
        """Of one kind of member, in all its turns."""
        turns, member = slice(first, first + self.turns), self.map.members[first]
        told = {
            "map": member.map.kind, "features": member.map.n_features, "scaling": member.scaling.kind,
            "share": shares[turns].sum(axis=0).tolist(),
            "holdout": _figures([said["holdout"] for said in done.told[turns]]),
        }  # fmt: skip
        return told if self.turns == 1 else {**told, "turns": self.turns}


UNSEEN, FINAL = "unseen", "final"


def _key(number: int, when: str, what: str) -> str:
    return f"{DONE}.{number}.{when}.{what}"


def _figures(turns: list[dict[str, Any] | None]) -> dict[str, float] | None:
    """Single numbers of what a member came to alone: the mean of its turns."""
    known = [metrics for metrics in turns if metrics]
    if not known:
        return None
    names = [name for name, value in known[0].items() if isinstance(value, (int, float))]
    return {name: sum(metrics[name] for metrics in known) / len(known) for name in names}


def _used(found: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Kinds that move the scores by more than next to nothing."""
    moved = found.max(axis=1) * scores.std(axis=(1, 2))
    return np.flatnonzero(moved >= LEAST_SHARE * moved.max())


def _turns(sizes: Sizes) -> int:
    """Before the roles of rows are settled."""
    split = sizes.split
    if sizes.source.holdout_key == ORDER:
        split = replace(split, key=ORDER)
    return turns_of(split, sizes.counting_rows, sizes.recipe.holdout)


@dataclass(frozen=True)
class Finished:
    """What is kept of members that are solved: weights and digests, what each had to tell, and its map where that was
    not known before."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    told: tuple[dict[str, Any], ...] = ()
    maps: tuple[JSON | None, ...] = ()

    @classmethod
    def of(cls, kept: Kept) -> Finished:
        arrays = {name: array for name, array in kept.arrays.items() if name.startswith(DONE)}
        return cls(arrays, tuple(kept.document.get(TOLD, ())), tuple(kept.document.get(MAPS, ())))

    def map_of(self, number: int) -> FeatureMap | None:
        start, document = _key(number, MAPS, ""), self.maps[number]
        own = {name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)}
        return None if document is None else map_from_parts(document, own)

    def of_members(self, numbers: np.ndarray) -> Finished:
        """Some of them, counted anew."""
        arrays: dict[str, np.ndarray] = {}
        for new, old in enumerate(numbers.tolist()):
            start = f"{DONE}.{old}."
            own = {name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)}
            arrays |= {f"{DONE}.{new}.{name}": array for name, array in own.items()}
        told, maps = (tuple(each[number] for number in numbers.tolist()) for each in (self.told, self.maps))
        return Finished(arrays, told, maps)

    def also(self, fitted: Fitted) -> Finished:
        """With the member that was solved last."""
        number, arrays = len(self.told), dict(self.arrays)
        for when, weights in ((UNSEEN, fitted.unseen or fitted.weights), (FINAL, fitted.weights)):
            arrays[_key(number, when, "coefficients")] = weights.coefficients
            arrays[_key(number, when, "intercept")] = np.asarray(weights.intercept, np.float64)
        arrays[_key(number, FINAL, "digest")] = np.frombuffer(bytes.fromhex(fitted.digest), np.uint8)
        document, own = (None, {}) if fitted.pipeline is None else fitted.pipeline.map.to_parts()
        arrays |= {_key(number, MAPS, name): array for name, array in own.items()}
        told = {**fitted.metadata, LAMBDA: fitted.weights.ridge}
        return Finished(arrays, (*self.told, told), (*self.maps, document))


@dataclass
class MemberPasses:
    """The passes of one member: what it keeps is kept beside the members that are done."""

    passes: Passes
    number: int
    done: Finished

    def __post_init__(self) -> None:
        if self.kept is None:
            self.keep({}, {})

    @property
    def kept(self) -> Kept | None:
        kept = self.passes.kept
        if kept is None or kept.document.get(MEMBER) != self.number:
            return None
        arrays = {name.removeprefix(f"{ROUTE}."): a for name, a in kept.arrays.items() if name.startswith(f"{ROUTE}.")}
        return Kept(kept.document[ROUTE], arrays)

    def keep(self, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        own = {f"{ROUTE}.{name}": array for name, array in arrays.items()}
        place = {MEMBER: self.number, TOLD: list(self.done.told), MAPS: list(self.done.maps), ROUTE: document}
        self.passes.keep(place, {**self.done.arrays, **own})

    def sum(self, statistic: Statistic[S], title: str = "training", source: Any = None) -> S:
        return self.passes.sum(statistic, title, source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.passes, name)
