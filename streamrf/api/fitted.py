"""What a fitted estimator tells: attributes that end in an underscore, as scikit-learn has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrf.data.screening import draw_sample
from streamrf.data.source import Block, Source
from streamrf.models.model import Model
from streamrf.recipe import BINNING
from streamrf.reports.importance import column_groups, loss_of, permutation_importance
from streamrf.support.threads import Threads

SAMPLE_ROWS, REPEATS = 2000, 3


class FittedAttributes:
    """Read from the model, which may be solved for it."""

    _rows: Block | None = None  # some of the rows of ``fit`` in memory; never saved or pickled
    threads: int | None

    @property
    def model_(self) -> Model:
        raise NotImplementedError

    @property
    def lambda_(self) -> float | np.ndarray:
        """The ridge penalty that was used; an array where outputs have their own."""
        weights = self.model_.weights
        return np.array(weights.ridges) if weights.ridges else weights.ridge

    @property
    def kernel_(self) -> str:
        """The kernel that was used."""
        return self.model_.recipe.kernel

    @property
    def length_scale_(self) -> float | np.ndarray | None:
        """The width of the kernel on scaled inputs; of random binning one for each input; of a blend its landmarks'."""
        widths = (self.model_.metadata.get("binning") or {}).get("length_scales")
        return np.array(widths) if widths and self.model_.recipe.map == BINNING else self.model_.recipe.length_scale

    @property
    def scaling_(self) -> str:
        """How the inputs are scaled; of a blend, for its landmarks and for its binning where these differ."""
        members = self.model_.metadata.get("members")
        return " + ".join(dict.fromkeys(each["scaling"] for each in members)) if members else self.model_.recipe.scaling

    @property
    def holdout_(self) -> dict[str, Any] | None:
        """Metrics on rows that chose nothing, with ``interval`` and ``baseline``; None if nothing was held out."""
        found = self.model_.metadata.get("holdout")
        return dict(found) if found else None

    @property
    def trials_(self) -> list[dict[str, Any]]:
        """The trials of the pilot, in order."""
        return [dict(trial) for trial in self.model_.metadata.get("pilot", ())]

    @property
    def feature_importances_(self) -> np.ndarray:
        """(n_features_in_,): permutation importances that sum to one, on at most 2,000 rows that ``fit`` had in memory.

        Codes of one column share its importance in equal parts. An estimator that was loaded or unpickled, or fitted
        to stored data, has no rows: use ``streamrf.importance(estimator.model_, data)``, which also takes new rows.
        """
        model = self.model_
        if self._rows is None:
            raise AttributeError(
                "feature_importances_ needs rows in memory, and this estimator has none: use"
                " streamrf.importance(estimator.model_, data)"
            )
        groups, X = column_groups(model), self._rows.X.astype(np.float64)
        with Threads(self.threads) as threads:
            rises = permutation_importance(loss_of(model, self._rows, threads)[0], X, groups, 0, REPEATS).mean(axis=1)
        found = np.zeros(model.n_inputs)
        for codes, rise in zip(groups.values(), np.maximum(rises, 0.0), strict=True):
            found[codes] = rise / len(codes)
        return found / (found.sum() or 1.0)

    def _keep_rows(self, source: Source, *, in_memory: bool) -> None:
        """Rows for importances, drawn now: afterwards the data may be gone."""
        kept = in_memory and source.n_rows > 0
        self._rows = draw_sample(source, min(SAMPLE_ROWS, source.n_rows), 0, "drop") if kept else None

    def __getstate__(self) -> Any:
        """No row of the data leaves the process with the estimator, nor does its cluster."""
        state = super().__getstate__()
        if not isinstance(state, dict):
            return state
        return {name: None if name == "engine" else value for name, value in state.items() if name != "_rows"}
