"""Random binning for losses other than the squared one: Newton's rounds in place of one system.

The first pass, the cache of bin indices, the rows held out and how they join are those of the squared loss.
"""

from __future__ import annotations

from dataclasses import replace

from streamrf.data.source import Block
from streamrf.solvers.base import Fitted
from streamrf.solvers.bin_rounds import BLIND_ROUNDS, ROUNDS, Rounds, steps_of
from streamrf.solvers.bin_stages import BLIND, JOIN, SEARCH, Opened
from streamrf.solvers.binning import FEWER_BINS, Binning
from streamrf.solvers.judging import calibrate
from streamrf.solvers.newton import Newton, plain_calibration
from streamrf.solvers.passes import Kept
from streamrf.solvers.plan import SLACK, SOLVE, Part, Plan, Sizes
from streamrf.statistics.bin_pulls import piece_rows
from streamrf.statistics.losses import Logistic
from streamrf.statistics.scores import Calibration, Weights

KEPT = "scores kept"
TYPICAL_ROUNDS = 8  # to the best, and to see that it was
PASSES = sum(1 + steps_of(number) for number in (*range(TYPICAL_ROUNDS), *range(TYPICAL_ROUNDS // 2)))  # the best again


class BinNewton(Binning):
    """Counts, then rounds of Newton's on the occupied bins."""

    name = "newton"
    losses = Newton.losses
    why = (
        "random binning is solved by rounds of Newton's, one pass for the gradient and one a step of conjugate"
        f" gradients; hold-out rows stop it (about {TYPICAL_ROUNDS} rounds)"
    )
    passes_of_a_group = PASSES
    tables = 3  # the point, the step from there, and the best point
    sampled = 10_000  # where the point begins

    @classmethod
    def group_parts(cls, bins: int, group: int, outputs: int) -> dict[str, Part]:
        """What so many outputs at once take: the sums of a pass; solution, residual, direction and diagonal."""
        return {
            "totals": Part(8 * bins * 2 * group, (SOLVE,), FEWER_BINS),
            "vectors": Part(16 * bins * group, (SOLVE,), FEWER_BINS),
        }

    @classmethod
    def _scores_bytes(cls, sizes: Sizes) -> int:
        return min(sizes.rows, piece_rows(sizes.outputs)) * 40 * sizes.outputs

    @classmethod
    def plan(cls, sizes: Sizes) -> Plan:
        """With the scores of all rows at a point, where they are kept and have room."""
        plan = super().plan(sizes)
        kept = 4 * sizes.rows * sizes.outputs
        if not sizes.local or SLACK * kept > plan.room:
            return plan
        return plan.with_parts(parts={KEPT: Part(kept, (SOLVE,), FEWER_BINS)})

    @classmethod
    def _looked_up(cls, plan: Plan) -> float:
        outputs = plan.sizes.outputs
        again = 0 if KEPT in plan.parts else -(-outputs // plan.outputs_at_once)
        return outputs * (1 + again / 2)

    @property
    def keeps_scores(self) -> bool:
        return KEPT in self.run.plan.parts

    def _solve(self, opened: Opened, kept: Kept | None) -> Fitted:
        """Hold-out rows choose a round, others judge it, and then all of them are in."""
        choosing, judges = opened.by_role(self.run.split)
        rounds, most = Rounds(self, opened, kept), max(1, self.run.plan.outputs_at_once)
        if choosing is None or opened.fitted < 2:
            rounds.run(BLIND, BLIND_ROUNDS, most)
            return self._told(rounds)
        if rounds.place.stage != JOIN:
            rounds.run(SEARCH, ROUNDS, most, choosing)
            rounds.verdict = self._verdict(rounds, choosing, judges)
            self._now_join()
        rounds.run(JOIN, rounds.place.best_round, most)
        return replace(self._told(rounds), judges=judges, choosing=choosing)

    def _told(self, rounds: Rounds) -> Fitted:
        fitted = self._fitted(rounds, rounds.facts())
        return replace(fitted, metadata={**fitted.metadata, "solver": {"name": self.name, **rounds.told()}})

    def calibrated(self, weights: Weights, choosing: Block) -> Calibration | None:
        """Logistic scores are log-odds already: nothing is left to calibrate."""
        if self.recipe.loss != Logistic.name:
            return super().calibrated(weights, choosing)
        known = plain_calibration(self.pipeline.coding.outputs)
        unseen = [(weights, choosing)]
        return calibrate(self.pipeline, unseen, self.threads, None, self.recipe.threshold, known)
