"""The curve behind the AUC, against scikit-learn's exact one."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding
from streamrf.statistics.scores import Calibration, Scores
from streamrf.support.threads import ALONE


class Scored:
    """A model of two classes whose score is the first column."""

    pipeline = SimpleNamespace(coding=TargetCoding.classification((0, 1)))
    is_classifier = True
    calibration = Calibration.plain(1)

    def scores(self, X, threads):
        return X[:, :1].astype(np.float64)

    def codes(self, scores):
        return self.calibration.logits(scores).argmax(axis=1)

    def probabilities(self, scores):
        return self.calibration.probabilities(scores)


def summed(scores, labels, blocks=1):
    statistic = Scores(Scored())
    states = []
    for part in np.array_split(np.arange(len(scores)), blocks):
        states.append(statistic.zero())
        statistic.update(states[-1], Block(scores[part, None], labels[part], part), ALONE)
    for state in states[:-1]:
        states[-1] += state
    return SimpleNamespace(auc=statistic.metrics(states[-1])["auc"], digest=states[-1].digest())


def drawn(share, gap, spread, shift, rows=20_000):
    rng = np.random.default_rng(0)
    labels = (rng.random(rows) < share).astype(np.int64)
    return shift + spread * (rng.standard_normal(rows) + gap * labels), labels


@pytest.mark.parametrize(
    ("share", "gap", "spread", "shift"),
    [
        pytest.param(0.5, 1.0, 10.0, 0.0, id="hinge"),
        pytest.param(0.003, 1.5, 1.0, -9.0, id="log-odds of a rare class"),
        pytest.param(0.003, 1.5, 0.003, -0.994, id="least squares of a rare class"),
        pytest.param(0.5, 1.0, 1e-3, 0.0, id="hardly learned"),
        pytest.param(0.5, 1.0, 0.3, 0.0, id="usual"),
        pytest.param(0.5, 1.0, 300.0, 0.0, id="far out"),
    ],
)
def test_the_area_under_the_curve_at_any_scale(share, gap, spread, shift):
    scores, labels = drawn(share, gap, spread, shift)
    assert summed(scores, labels).auc == pytest.approx(roc_auc_score(labels, scores), abs=1e-3)


def test_scores_without_bound_have_a_place():
    scores = np.array([-1e300, -1e6, 0.0, 1e6, 1e300])
    assert summed(scores, np.array([0, 0, 0, 1, 1])).auc == 1.0


def test_the_curve_is_the_same_in_any_order():
    scores, labels = drawn(0.3, 1.0, 5.0, 0.0, rows=2000)
    order = np.random.default_rng(1).permutation(2000)
    assert summed(scores, labels).digest == summed(scores[order], labels[order], blocks=7).digest
