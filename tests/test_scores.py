"""Metrics as exact sums: against scikit-learn's, in any order, and with weights."""

from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.metrics as sk
from sklearn.metrics import roc_auc_score
from statistics_conformance import StatisticConformance, make_blocks

from streamrf.data.source import Block
from streamrf.features.targets import TargetCoding
from streamrf.statistics.calibration import fit_calibration
from streamrf.statistics.metrics import Unit
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


# -- every other figure, against scikit-learn's


class Known:
    """A model whose scores are the inputs: numbers, or logits of classes."""

    def __init__(self, coding):
        self.pipeline = SimpleNamespace(coding=coding)
        self.is_classifier = bool(coding.classes)
        self.calibration = Calibration(np.eye(coding.outputs), np.zeros(coding.outputs))

    def scores(self, X, threads):
        return X.astype(np.float64)

    def codes(self, scores):
        return self.calibration.logits(scores).argmax(axis=1)

    def probabilities(self, scores):
        return self.calibration.probabilities(scores)


NAMES = ("ant", "bee", "cow", "dog", "elk")


def classes_of(count, rows=3000, seed=0):
    """Unbalanced labels, and logits that know something of them."""
    rng = np.random.default_rng(seed)
    codes = rng.choice(count, rows, p=np.arange(1, count + 1) / (count * (count + 1) / 2))
    X = rng.standard_normal((rows, 1 if count == 2 else count))
    X += 2.0 * codes[:, None] - 1 if count == 2 else 1.5 * np.eye(count)[codes]
    return X, np.array(NAMES)[codes], TargetCoding.classification(NAMES[:count])


def numbers_of(outputs, rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.standard_normal((rows, outputs)) * 3 + 5
    low, high = y.min(axis=0), y.max(axis=0)
    return y + rng.standard_normal(y.shape), y, TargetCoding.regression(low, high)


def drawn_weights(rows=3000, seed=3):
    return np.random.default_rng(seed).gamma(0.5, 2.0, rows)


def judged(X, y, coding, weights=None, blocks=1, order=None):
    """Metrics and digest of the sums, which may be made in any number of blocks and in any order."""
    unit = None if weights is None else Unit.of(weights.max())
    statistic, order = Scores(Known(coding), unit), np.arange(len(X)) if order is None else order
    total = statistic.zero()
    for part in np.array_split(order, blocks):
        state = statistic.zero()
        rows = Block(X[part], y[part], part, None if weights is None else weights[part])
        statistic.update(state, rows, ALONE)
        total += state
    return statistic.metrics(total), total.digest()


def expected_calibration_error(chances, codes, weights, bins=15):
    """The definition, one bin after the other."""
    top, right = chances.max(axis=1), chances.argmax(axis=1) == codes
    place = np.minimum(np.floor(top * bins), bins - 1)
    gaps = [abs((weights * (right - top.astype(float)))[place == number].sum()) for number in range(bins)]
    return sum(gaps) / weights.sum()


def by_scikit_learn(X, y, coding, w):
    model, codes = Known(coding), coding.codes(y)
    chances, told = model.probabilities(X), model.codes(X)
    labels, (precision, recall, f1, _) = range(len(coding.classes)), sk.precision_recall_fscore_support(
        codes, told, sample_weight=w, zero_division=0
    )  # fmt: skip
    counts = np.bincount(codes, weights=w)
    shares = np.tile(counts / counts.sum(), (len(codes), 1))
    two = len(coding.classes) == 2
    found = {
        "accuracy": sk.accuracy_score(codes, told, sample_weight=w),
        "error": 1 - sk.accuracy_score(codes, told, sample_weight=w),
        "balanced_accuracy": sk.balanced_accuracy_score(codes, told, sample_weight=w),
        "log_loss": sk.log_loss(codes, chances, sample_weight=w),
        "brier": sk.brier_score_loss(codes, chances[:, 1] if two else chances, sample_weight=w, labels=list(labels)),
        "calibration_error": expected_calibration_error(chances, codes, np.ones(len(codes)) if w is None else w),
        "precision": precision, "recall": recall, "f1": f1,
        "confusion": sk.confusion_matrix(codes, told, sample_weight=w),
        "baseline": {
            "class": coding.classes[counts.argmax()], "error": 1 - counts.max() / counts.sum(),
            "log_loss": sk.log_loss(codes, shares, sample_weight=w),
            "brier": sk.brier_score_loss(codes, shares[:, 1] if two else shares, sample_weight=w, labels=list(labels)),
        },
    }  # fmt: skip
    if two:
        found["auc"] = sk.roc_auc_score(codes, X[:, 0], sample_weight=w)
        found["average_precision"] = sk.average_precision_score(codes, X[:, 0], sample_weight=w)
        found["of the first class"] = sk.average_precision_score(1 - codes, -X[:, 0], sample_weight=w)
    return found


@pytest.mark.parametrize("weights", [None, drawn_weights()], ids=["plain", "weighted"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_figures_of_classes_are_those_of_scikit_learn(count, weights):
    X, y, coding = classes_of(count)
    found, wanted = judged(X, y, coding, weights)[0], by_scikit_learn(X, y, coding, weights)
    by_class = found.pop("by_class")
    assert [each["class"] for each in by_class] == list(coding.classes)
    for name in ("precision", "recall", "f1"):
        assert [each[name] for each in by_class] == pytest.approx(wanted.pop(name), rel=1e-7)
    if count == 2:
        known = [wanted.pop("of the first class"), wanted["average_precision"]]
        assert [each["average_precision"] for each in by_class] == pytest.approx(known, abs=1e-4)
    assert np.allclose(found.pop("confusion"), wanted.pop("confusion"))
    baseline, known = found.pop("baseline"), wanted.pop("baseline")
    assert baseline.pop("class") == known.pop("class")
    assert baseline == pytest.approx(known, rel=1e-7)
    assert found.pop("rows") == len(X)
    if weights is not None:
        assert found.pop("weight") == pytest.approx(weights.sum())
    for name in ("auc", "average_precision"):
        if name in wanted:
            assert found.pop(name) == pytest.approx(wanted.pop(name), abs=1e-4)
    assert found == pytest.approx(wanted, rel=1e-7)


@pytest.mark.parametrize("weights", [None, drawn_weights()], ids=["plain", "weighted"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_figures_of_numbers_are_those_of_scikit_learn(outputs, weights):
    X, y, coding = numbers_of(outputs)
    found = judged(X, y, coding, weights)[0]
    means = np.tile(np.average(y, axis=0, weights=weights), (len(y), 1))
    root = {"sample_weight": weights, "multioutput": "raw_values"}
    assert found["rmse"] == pytest.approx(np.sqrt(sk.mean_squared_error(y, X, sample_weight=weights)))
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(y, X, sample_weight=weights))
    assert found["r2"] == pytest.approx(sk.r2_score(y, X, sample_weight=weights))
    assert found["baseline"]["rmse"] == pytest.approx(np.sqrt(sk.mean_squared_error(y, means, sample_weight=weights)))
    assert found["baseline"]["mean"] == pytest.approx(means[0])
    if outputs > 1:
        assert found["rmse_by_output"] == pytest.approx(sk.root_mean_squared_error(y, X, **root))


CASES = {"two classes": classes_of(2, 500), "five classes": classes_of(5, 500), "two outputs": numbers_of(2, 500)}


@pytest.mark.parametrize("case", CASES)
def test_any_order_and_any_blocks_are_the_same_bits(case):
    X, y, coding = CASES[case]
    order = np.random.default_rng(1).permutation(500)
    for weights in (None, drawn_weights(500)):
        assert judged(X, y, coding, weights) == judged(X, y, coding, weights, blocks=9, order=order)


@pytest.mark.parametrize("case", CASES)
def test_a_row_of_weight_two_is_a_row_twice(case):
    X, y, coding = CASES[case]
    times = np.random.default_rng(2).integers(0, 4, 500)
    repeated = judged(np.repeat(X, times, axis=0), np.repeat(y, times, axis=0), coding)[0]
    found = judged(X, y, coding, times.astype(np.float64))[0]
    assert found.pop("weight") == repeated.pop("rows") == times.sum()
    assert found.pop("rows") == (times > 0).sum()
    for name, value in repeated.items():
        assert flat(found[name]) == pytest.approx(flat(value), rel=1e-12), name
    if coding.classes:  # counts alone decide these, and they are integers
        assert found["confusion"] == repeated["confusion"]
        assert found["error"] == repeated["error"]


@pytest.mark.parametrize("case", CASES)
def test_a_row_of_weight_zero_is_no_row(case):
    X, y, coding = CASES[case]
    weights = np.where(np.arange(500) % 3 == 0, 0.0, drawn_weights(500))
    here = weights > 0
    assert judged(X, y, coding, weights, blocks=4) == judged(X[here], y[here], coding, weights[here])
    assert judged(X[:3], y[:3], coding, np.array([0.0, 0.0, 1.0]))[0]["rows"] == 1


def test_weights_of_any_scale():
    X, y, coding = CASES["two classes"]
    for scale in (1e-310, 1e-30, 1e30):
        found, plain = judged(X, y, coding, np.full(500, scale))[0], judged(X, y, coding)[0]
        assert found["log_loss"] == pytest.approx(plain["log_loss"], rel=1e-3 if scale < 1e-300 else 1e-9)
        assert found["error"] == pytest.approx(plain["error"])


def test_a_class_without_rows_has_no_recall():
    X, y, coding = classes_of(3, 300)
    some = y != "ant"
    found = judged(X[some], y[some], coding)[0]
    assert found["by_class"][0]["recall"] is None
    assert found["balanced_accuracy"] == pytest.approx(np.mean([each["recall"] for each in found["by_class"][1:]]))
    nothing = judged(np.full((4, 1), -9.0), np.array(["ant"] * 4), TargetCoding.classification(NAMES[:2]))[0]
    unknown = dict.fromkeys(("precision", "recall", "f1", "average_precision"))
    assert nothing["by_class"][1] == {"class": "bee", "rows": 0, **unknown}
    assert nothing["average_precision"] is None


def flat(value):
    """The numbers of a metric, whatever it is made of."""
    if isinstance(value, dict):
        return [number for each in value.values() for number in flat(each)]
    if isinstance(value, list):
        return [number for each in value for number in flat(each)]
    return [value] if isinstance(value, (int, float)) else []


class TestConformance(StatisticConformance):
    @pytest.fixture(params=list(CASES))
    def case(self, request):
        return CASES[request.param]

    @pytest.fixture
    def statistic(self, case):
        return Scores(Known(case[2]))

    @pytest.fixture
    def blocks(self, case):
        return make_blocks(case[0][:90], case[1][:90], [20, 20, 55])


@pytest.mark.parametrize("spread", [0.2, 0.02, 0.002])
def test_a_rare_class_is_calibrated_however_close_its_scores_lie(spread):
    """Slopes were shrunk in units of the scores, and shifts left out for one row more that was wrong."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(24_000)
    p = 1 / (1 + np.exp(6.0 - 2 * x))  # one in a hundred and a few
    codes, scores = (rng.random(24_000) < p).astype(np.int64), (spread * x - 0.98)[:, None]
    found = fit_calibration(scores[:4000], codes[:4000]).probabilities(scores[4000:])[:, 1]
    fresh = codes[4000:]
    losses = [-np.mean(np.log(np.where(fresh == 1, each, 1 - each))) for each in (found, p[4000:])]
    assert losses[0] < 1.02 * losses[1]
