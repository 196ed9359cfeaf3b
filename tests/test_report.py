"""The report: its numbers against naive ones, its page in a real browser, its sections for each kind of model."""

import numpy as np
import pytest
from browser import Browser
from commands import FAST, done, streamrf
from sklearn.metrics import roc_auc_score
from tables import labelled, smooth, write_zarr

from streamrf.data.columns.column import Column
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.features.kernels import make_kernel
from streamrf.models.model import Model
from streamrf.reports import accuracy, importance, usage
from streamrf.reports.evidence import gather_evidence, row_set
from streamrf.reports.page import Section, page
from streamrf.reports.report import make_report
from streamrf.reports.segments import column_segments
from streamrf.solvers.ridge import NormalEquations
from streamrf.support.threads import ALONE, Threads
from streamrf.training.update.changes import accumulate
from streamrf.training.update.statistics import Statistics

EVERYTHING = {
    "errors",
    "segments",
    "learning",
    "inputs",
    "search",
    "spectrum",
    "kernel",
    "cost",
    "settings",
    "provenance",
}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Models of each kind, the data they were trained on, and new rows."""
    root = tmp_path_factory.mktemp("shelf")
    tables = {
        "numbers": (smooth(2400), smooth(900, seed=1)),
        "pair": (labelled(2400, classes=2), labelled(900, classes=2, seed=1)),
        "classes": (labelled(2400, classes=4), labelled(900, classes=4, seed=1)),
    }
    X, y = tables["numbers"][0]
    tables["outputs"] = ((X, np.stack([y, -y], axis=1)), (X[:500], np.stack([y, -y], axis=1)[:500]))
    for name, (train, test) in tables.items():
        write_zarr(root / f"{name}.zarr", *train)
        write_zarr(root / f"{name}-test.zarr", *test)
        options = ("--kernel", "gaussian", "--D", "64") if name == "numbers" else FAST
        done("train", root / f"{name}.zarr", *options, "--out", root / f"{name}.model", "--threads", "1", "--quiet")
    done("train", root / "pair.zarr", *FAST[:-4], "--cv", "3", "--form", "pairs", "--no-statistics",
         "--out", root / "bare.model", "--quiet")  # fmt: skip
    return root


@pytest.fixture(scope="module")
def browser():
    one = Browser()
    yield one
    one.close()


# -- the page


@pytest.mark.parametrize(
    ("model", "data", "absent"),  # a section that does not apply is left out
    [
        ("numbers", "numbers-test", set()),
        ("pair", "pair", {"search"}),
        ("classes", "classes-test", {"search"}),
        ("outputs", "outputs-test", {"search"}),
        ("bare", None, {"spectrum", "learning", "inputs", "segments"}),
    ],
)  # fmt: skip
def test_pages_are_whole_in_a_browser(shelf, browser, tmp_path, model, data, absent):
    more = ("--data", shelf / f"{data}.zarr") if data else ()
    told = done(
        "report", shelf / f"{model}.model", *more, "--out", tmp_path / "r.html", "--json", "--threads", "1"
    ).json
    assert set(told["sections"]) == EVERYTHING - absent
    for width, dark in ((1200, False), (390, True)):
        seen = browser.open(tmp_path / "r.html", width=width, dark=dark)
        assert seen["complaints"] == []
        assert seen["requests"] == []
        assert (seen["wide"], seen["scroll"], seen["flat"], seen["twice"], seen["broken"]) == ([], 0, 0, [], 0)
        assert seen["pictures"] == seen["titles"] == len(told["pictures"])
        assert len(seen["headings"]) == len(told["sections"])
        assert contrast(seen["color"], seen["background"]) > 7
        assert contrast(seen["text"], seen["background"]) > 7  # the ink of pictures follows the theme
        assert (brightness(seen["background"]) < 0.2) == dark


def brightness(colour):
    """Relative luminance as WCAG has it."""
    parts = np.array([float(part) for part in colour.split("(")[1].strip(")").split(",")[:3]]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    dark, light = sorted((brightness(one), brightness(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(
    ("options", "pictures"),
    [
        (("--map", "binning", "--grids", "10"), {"bins", "importance"}),
        (("--D", "32", "--map", "ekal-sample", "--learning-iterations", "30"), {"history", "eigenvalues"}),
        (("--D", "32", "--map", "supervised"), {"history"}),
        (("--D", "32", "--metric", "diagonal"), {"metric", "eigenvalues"}),
        (("--D", "32", "--solver", "cg"), {"lambda", "learning"}),
    ],
)
def test_models_of_every_kind_have_a_page(shelf, browser, tmp_path, options, pictures):
    data, model = shelf / "numbers.zarr", tmp_path / "m.model"
    done("train", data, *options, "--pilot", "none", "--threads", "1", "--out", model, "--quiet")
    told = done("report", model, "--data", shelf / "numbers-test.zarr", "--out", tmp_path / "r.html", "--json").json
    assert pictures <= set(told["pictures"])
    seen = browser.open(tmp_path / "r.html")
    assert (seen["complaints"], seen["wide"], seen["twice"], seen["broken"]) == ([], [], [], 0)


def test_nothing_is_loaded_from_elsewhere(shelf):
    with Threads(1) as threads:
        html = make_report(shelf / "numbers.model", threads=threads).html
    assert "<script" not in html
    addresses = {part.split('"')[0] for part in html.split('="http')[1:]}
    assert addresses <= {"://www.w3.org/2000/svg", "://www.w3.org/1999/xlink"}


def test_pictures_as_files(shelf, tmp_path):
    args = ("report", shelf / "pair.model", "--out", tmp_path / "r.html", "--png", tmp_path / "png", "--json")
    told = done(*args).json
    assert sorted(path.name for path in (tmp_path / "png").iterdir()) == sorted(f"{p}.png" for p in told["pictures"])
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "png").iterdir())
    assert streamrf(*args).code == 7
    assert streamrf(*args, "--overwrite").code == 0


def test_the_page_goes_beside_the_model(shelf):
    assert "bare.model.html: " in done("report", shelf / "bare.model").out
    assert (shelf / "bare.model.html").read_text().startswith("<!doctype html>")


def test_names_are_text_and_not_markup(tmp_path):
    X, y = labelled(400, classes=2)
    write_zarr(tmp_path / "a.zarr", X, np.array(["<b>no</b>", "yes & no"])[y].astype("U12"))
    done("train", tmp_path / "a.zarr", *FAST, "--out", tmp_path / "a&<i>.model", "--quiet")
    with Threads(1) as threads:
        html = make_report(tmp_path / "a&<i>.model", open_source(str(tmp_path / "a.zarr")), threads=threads).html
    assert "<b>no</b>" not in html
    assert "<i>" not in html
    assert "a&amp;&lt;i&gt;.model" in html


# -- the evidence


def test_rows_that_were_trained_on_are_taken_out_first(shelf):
    source = open_source(str(shelf / "numbers.zarr"))
    with Threads(1) as threads:
        evidence = gather_evidence(shelf / "numbers.model", source, threads, rows=300)
        assert evidence.seen
        assert evidence.unseen_model is not None
        rest = np.setdiff1d(np.arange(2400), evidence.rows.index)
        X, y = smooth(2400)
        statistics = Statistics.load(shelf / "numbers.model")
        alone = accumulate(statistics.prepared, ArraySource(X[rest], y[rest]))
        expected = alone.solve(evidence.model.weights.ridge, threads=threads)
    assert np.array_equal(evidence.unseen_model.weights.coefficients, expected.weights.coefficients)


def test_new_rows_are_judged_as_they_are(shelf):
    with Threads(1) as threads:
        evidence = gather_evidence(shelf / "numbers.model", open_source(str(shelf / "numbers-test.zarr")), threads)
        told = done("evaluate", shelf / "numbers.model", shelf / "numbers-test.zarr", "--json").json
        assert not evidence.seen
        assert len(evidence.rows) == 900
        assert np.sqrt(((evidence.scores - evidence.truth) ** 2).mean()) == pytest.approx(told["rmse"])


def test_row_sets():
    assert [tuple(span) for span in row_set(np.array([5, 3, 4, 9, 0])).spans()] == [(0, 1), (3, 6), (9, 10)]


# -- the numbers


def test_the_spectrum_is_that_of_the_features(shelf):
    statistics = Statistics.load(shelf / "numbers.model")
    prepared = statistics.prepared
    equations = NormalEquations.from_state(statistics.state, prepared.map, prepared.coding)
    X, _ = smooth(2400)
    Z = prepared.map.dense(prepared.scaling.transform(X, prepared.map.precision.inputs), ALONE)
    expected = np.linalg.eigvalsh(np.cov(Z.T, bias=True))[::-1]
    with Threads(1) as threads:
        found = usage.feature_spectrum(equations, threads)
        some = usage.feature_spectrum(equations, threads, most=20)
    assert np.allclose(found.values, np.maximum(expected, 0), atol=1e-12)
    ridge = 1e-3
    assert found.dimension(ridge) == pytest.approx((expected / (expected + ridge)).sum(), rel=1e-6)
    assert (some.features, some.of, len(some.values)) == (20, 64, 20)
    assert found.values.sum() == pytest.approx(some.values.sum(), rel=0.3)


def test_the_learning_curve_ends_where_ridge_regression_does():
    rng = np.random.default_rng(0)
    Z, w = rng.standard_normal((600, 5)), rng.standard_normal((5, 1))
    y = Z @ w + 3.0 + 0.1 * rng.standard_normal((600, 1))
    curve = accuracy.learning_curve(Z, y, 100, lambda s, t: float(np.sqrt(((s - t) ** 2).mean())), of=10)
    design = np.column_stack([Z[:500], np.ones(500)])
    best = np.linalg.lstsq(design, y[:500], rcond=None)[0]
    expected = np.sqrt(((np.column_stack([Z[500:], np.ones(100)]) @ best - y[500:]) ** 2).mean())
    assert curve.rows[-1] == 500
    assert curve.errors[-1] == pytest.approx(expected, rel=1e-3)
    assert curve.rows == sorted(curve.rows)


def test_roc_with_ties():
    rng = np.random.default_rng(0)
    scores, positive = np.round(rng.standard_normal(500), 1), rng.random(500) < 0.4
    false, true, area = accuracy.roc(scores, positive)
    assert area == pytest.approx(roc_auc_score(positive, scores))
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert len(accuracy.thinned(np.arange(1000), np.arange(1000))[0]) <= 300


def test_reliability_and_confusion():
    forecast, observed, counts = accuracy.reliability(np.array([0.05, 0.05, 0.95, 1.0]), np.array([0, 1, 1, 1]) == 1)
    assert np.allclose(forecast, [0.05, 0.975])
    assert np.allclose(observed, [0.5, 1.0])
    assert counts.tolist() == [2, 2]
    assert accuracy.confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist() == [[1, 1], [0, 1]]


def test_importance_and_dependence_of_a_known_function():
    X = np.random.default_rng(0).standard_normal((400, 3))
    y = 3 * X[:, 0] + X[:, 1] ** 2
    rises = importance.permutation_importance(
        lambda Z: float(np.mean((3 * Z[:, 0] + Z[:, 1] ** 2 - y) ** 2)), X, {str(i): np.array([i]) for i in range(3)}, 0
    )
    assert np.argsort(rises.mean(axis=1)).tolist() == [2, 1, 0]
    assert np.all(rises[2] == 0)
    grid, answers = importance.partial_dependence(lambda Z: Z[:, :1] * 3, X, np.array([0]))
    assert np.allclose(answers, 3 * grid)


def test_kernel_errors_fall_with_more_features(shelf):
    model = Model.load(shelf / "numbers.model")
    X = np.random.default_rng(0).standard_normal((100, 6))
    with Threads(1) as threads:
        errors = usage.kernel_errors(
            "mc", make_kernel("gaussian", length_scale=2.0), X, [32, 512], model.map, 0, threads
        )
    assert errors[1] < errors[0] / 2
    assert usage.kernel_sizes(100, even=False) == [32, 64, 100]
    assert usage.kernel_sizes(10**6, even=True)[-1] == usage.LARGEST_D


@pytest.mark.parametrize("data", ["classes-test", None])
def test_the_report_has_every_figure_of_evaluate(shelf, data):
    source = None if data is None else open_source(shelf / f"{data}.zarr")
    page = make_report(shelf / "classes.model", source, threads=ALONE).html
    found = Model.load(shelf / "classes.model").metadata["holdout"]
    if data:
        found = done("evaluate", shelf / "classes.model", shelf / f"{data}.zarr", "--json").json
    for name in ("balanced_accuracy", "log_loss", "calibration_error"):
        assert f"{name.replace('_', ' ')}</th><td>{found[name]:.5g}</td>" in page
    assert f"log loss of the baseline</th><td>{found['baseline']['log_loss']:.5g}</td>" in page
    for each in found["by_class"]:
        cells = (each["class"], each["rows"], *(f"{each[name]:.5g}" for name in ("precision", "recall", "f1")))
        assert "".join(f"<td>{cell}</td>" for cell in cells) in page


def test_precision_and_recall_against_scikit_learn():
    from sklearn.metrics import precision_recall_curve

    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 20, 300) / 20, rng.random(300) < 0.3
    recall, precision = accuracy.precision_recall(scores, positive)
    theirs = precision_recall_curve(positive, scores)
    assert np.allclose(precision, theirs[0][:-1][::-1])
    assert np.allclose(recall, theirs[1][:-1][::-1])


def test_long_names_leave_room_for_values_on_a_narrow_screen(browser, tmp_path):
    row = [("a column with a long name from 2024-03-17T18:00:00 to 2024-05-20T12:00:00", "RMSE 0.1146 on 375 rows")]
    (tmp_path / "p.html").write_text(page("t", "l", [], [Section("s", "S", table=row)], "f"))
    assert browser.open(tmp_path / "p.html", width=390)["scroll"] == 0
    assert "td { min-width: 6rem; }" in (tmp_path / "p.html").read_text()


def test_segments_are_levels_and_quarters():
    colour = Column("colour", "onehot", ("blue", "red"), flag=True)
    codes = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]], float)
    found = {name: rows.tolist() for name, rows in column_segments("colour", colour, codes)}
    assert found["colour is missing"] == [False, False, False, True]
    assert found["colour = red"] == [False, True, True, False]
    assert found["colour = blue"] == [True, False, False, False]
    quarters = dict(column_segments("x0", None, np.arange(101.0)[:, None]))
    assert next(iter(quarters)) == "x0 from 0 to 25"
    assert np.sum(list(quarters.values()), axis=0).tolist() == [1] * 101
