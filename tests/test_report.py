"""The report: its numbers against naive ones, its page in a real browser, its sections for each kind of model."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from browser import Browser
from commands import FAST, done, streamrf
from sklearn.metrics import roc_auc_score
from tables import labelled, smooth, write_zarr

from streamrf.cli.train import command_line
from streamrf.data.columns import Columns
from streamrf.data.columns.column import Column
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.features.blend import BlendMap
from streamrf.features.kernels import make_kernel
from streamrf.models.model import Model, UntrainedModel
from streamrf.recipe import Recipe
from streamrf.reports import accuracy, curve, history, importance, usage
from streamrf.reports.evidence import Evidence, gather_evidence, row_set
from streamrf.reports.page import Picture, Section, bars, page, panels
from streamrf.reports.report import lead, make_report, tiles
from streamrf.reports.segments import column_segments
from streamrf.solvers import stacking
from streamrf.solvers.ridge import NormalEquations
from streamrf.support.errors import DataError
from streamrf.support.progress import Reporter
from streamrf.support.threads import ALONE, Threads
from streamrf.training import run
from streamrf.training.update.changes import accumulate
from streamrf.training.update.statistics import Statistics

pytestmark = pytest.mark.usefixtures("in_little_time")
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


def test_errors_of_less_than_a_decade_have_numbers_at_their_axis(tmp_path):
    """A logarithmic axis has them at powers of ten alone."""
    write_zarr(tmp_path / "t.zarr", *smooth(600))
    done("train", tmp_path / "t.zarr", *FAST, "--map", "sobol", "--out", tmp_path / "m.model", "--quiet")
    with Threads(1) as threads:
        evidence = gather_evidence(tmp_path / "m.model", open_source(str(tmp_path / "t.zarr")), threads)
        (picture,) = usage.kernel(evidence).pictures
    (axes,) = picture.figure.axes
    picture.figure.canvas.draw()
    low, high = axes.get_ylim()
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert high / low < 20
    assert len(shown) >= 2


def test_only_a_pilot_that_ran_is_told_to_have_chosen(shelf, tmp_path):
    with Threads(1) as threads:
        chosen, given = (
            history.search(gather_evidence(shelf / f"{name}.model", None, threads)) for name in ("numbers", "bare")
        )
    assert chosen.text.startswith("Small fits on a sample choose scaling, kernel and width. ")
    assert given.text == "λ is chosen on rows that are not fitted to."


def test_figures_of_new_rows_are_of_all_of_them_and_the_command_is_told(shelf):
    """Pictures are of a sample."""
    with Threads(1) as threads:
        evidence = gather_evidence(
            shelf / "numbers.model", open_source(str(shelf / "numbers-test.zarr")), threads, rows=200
        )
        section = accuracy.errors(evidence)
    told = done("evaluate", shelf / "numbers.model", shelf / "numbers-test.zarr", "--json").json
    assert ("RMSE", f"{told['rmse']:.5g}") in section.table
    assert section.text == "Figures of all 900 rows of the data; pictures of 200 rows of the data."
    (typed,) = (value for name, value in history.provenance(evidence).table if name == "command")
    assert typed.startswith("streamrf train ")
    assert "numbers.zarr" in typed


def test_a_command_is_kept_without_secrets():
    kept = command_line(["train", "https://me:word@host/a b.csv?sig=abc", "--target", "y, z"])
    assert kept == "streamrf train 'https://host/a b.csv?sig=***' --target 'y, z'"


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
    found = curve.learning_curve(Z, y, 100, lambda s, t: float(np.sqrt(((s - t) ** 2).mean())), of=10)
    design = np.column_stack([Z[:500], np.ones(500)])
    best = np.linalg.lstsq(design, y[:500], rcond=None)[0]
    expected = np.sqrt(((np.column_stack([Z[500:], np.ones(100)]) @ best - y[500:]) ** 2).mean())
    assert found.rows[-1] == 500
    assert found.errors[-1] == pytest.approx(expected, rel=1e-3)
    assert found.rows == sorted(found.rows)


@pytest.mark.parametrize("kind", ["blend", "landmarks", "binning", "trees"])
@pytest.mark.parametrize("table", [smooth, labelled])
def test_a_model_that_is_trained_again_on_its_own_rows_is_the_same(kind, table):
    """So the learning curve is one of the model at its own size: all but the weights is what it was trained with."""
    X, y = table(700)
    sized = {"binning": {"grids": 12}, "blend": {"grids": 12}}.get(kind, {})
    recipe = Recipe(map=kind, D=40, pilot="none", seed=3, **sized)
    model = run.train(ArraySource(X, y), recipe, run.Settings(threads=1)).model
    before = replace(model.pipeline, map=model.map.untrained())
    untrained = UntrainedModel(model.recipe, before, {"split": model.metadata["split"]})
    settings = run.Settings(threads=1)
    again = run.Training(ArraySource(X, y), recipe, settings, Reporter(), ALONE).fit_again(untrained)
    assert np.array_equal(again.scores(X, ALONE), model.scores(X, ALONE))
    assert again.recipe == model.recipe


def test_the_learning_curve_of_a_blend(tmp_path):
    (X, y), (X_new, y_new) = smooth(2100), smooth(900, seed=1)
    model = run.train(ArraySource(X, y), Recipe(map="blend", D=64, grids=12, pilot="none"), run.Settings(threads=1))
    model.model.save(tmp_path / "m.model")
    with Threads(1) as threads:
        evidence = gather_evidence(tmp_path / "m.model", ArraySource(X_new, y_new), threads)
        section = curve.learning(evidence)
        found = curve.trained_again(model.model, evidence.rows, 225, threads)
    assert found.rows == [84, 168, 337, 675]
    assert found.errors[-1] < 0.7 * found.errors[0]
    assert "its own size" in section.text
    (picture,) = section.pictures
    assert "the model itself has" in picture.alt
    assert f"{found.errors[-1]:.3g} at 675" in picture.alt


def test_a_curve_that_cannot_be_made_is_left_out(tmp_path, monkeypatch):
    X, y = smooth(600)
    model = run.train(ArraySource(X, y), Recipe(map="trees", pilot="none"), run.Settings(threads=1)).model
    model.save(tmp_path / "m.model")

    def refused(*_):
        raise DataError("one class only")

    monkeypatch.setattr(curve, "trained_again", refused)
    with Threads(1) as threads:
        assert curve.learning(gather_evidence(tmp_path / "m.model", ArraySource(X, y), threads)).is_empty


def test_fewer_rows_than_features_are_fitted_alike():
    """From the other side of the matrix: against the primal solution, at every lambda."""
    rng = np.random.default_rng(1)
    Z, y, unseen = rng.standard_normal((30, 50)), rng.standard_normal((30, 2)), rng.standard_normal((7, 50))
    centred, mean = Z - Z.mean(axis=0), y.mean(axis=0)
    for ridge, found in zip(curve.RIDGES, curve._path_scores(Z, y, unseen), strict=True):
        if ridge >= 1e-6:  # below, the primal solution is rounding alone
            w = np.linalg.solve(centred.T @ centred / 30 + ridge * np.eye(50), centred.T @ (y - mean) / 30)
            assert found == pytest.approx((unseen - Z.mean(axis=0)) @ w + mean, abs=1e-5)


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


WIDER = """(() => JSON.stringify([...document.querySelectorAll('figure')].map(f => {
  const box = f.querySelector('.scroll') || f;
  return [box.scrollWidth > box.clientWidth + 1,
    getComputedStyle(f.querySelector('figcaption'), '::after').content.includes('Scroll sideways'),
    box.tabIndex === 0, getComputedStyle(box).backgroundImage !== 'none'];
})))()"""


def test_pictures_that_go_on_beyond_a_narrow_screen_say_so(shelf, browser, tmp_path):
    """A picture is whole, or its caption, a shade at its end and the keyboard lead to the rest."""
    data = shelf / "numbers-test.zarr"
    done("report", shelf / "numbers.model", "--data", data, "--out", tmp_path / "r.html", "--threads", "1")
    for width in (390, 1200):
        browser.open(tmp_path / "r.html", width=width)
        found = json.loads(browser.call("Runtime.evaluate", expression=WIDER)["result"]["value"])
        wider = [each for each in found if each[0]]
        assert all(each[1:] == [True, True, True] for each in wider)
        assert not any(each[1] for each in found if not each[0])
        assert 0 < len(wider) <= 3 if width == 390 else not wider  # importances are whole


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


def test_segments_of_few_values_of_dates_and_of_means():
    garden = dict(column_segments("garden", None, np.array([[0.0], [1.0], [1.0]])))
    assert {name: rows.tolist() for name, rows in garden.items()} == {
        "garden = 0": [True, False, False], "garden = 1": [False, True, True],
    }  # fmt: skip
    days = np.arange(20_000.0, 20_101.0)[:, None]
    assert next(iter(dict(column_segments("day", Column("day", "date"), days)))) == "day from 2024-10-04 to 2024-10-29"
    times = dict(column_segments("seen", Column("seen", "date"), days + 0.5))
    assert next(iter(times)) == "seen from 2024-10-04 12:00 to 2024-10-29 12:00"
    zips = dict(column_segments("zip", Column("zip", "target", ("1", "2")), np.arange(101.0)[:, None]))
    assert next(iter(zips)) == "zip, by its mean of the target, from 0 to 25"


def test_numbers_with_gaps_are_a_line_and_a_dotted_one():
    found = importance.Dependence("area", (1.0, 2.0, 3.0, "missing"), np.array([[1.0], [2.0], [3.0], [9.0]]))
    _, (axes,) = panels((3, 3), 1)
    importance.draw_dependence(axes, found, ["output 0"])
    dotted, line = axes.get_lines()
    assert (dotted.get_linestyle(), dotted.get_ydata()[0]) == (":", 9.0)
    assert line.get_xdata().tolist() == [1.0, 2.0, 3.0]


def test_the_lead_leaves_names_of_classes_alone():
    X, y = labelled(60)
    model = run.train(ArraySource(X, np.array(["A", "B", "C"])[y]), Recipe(D=10, pilot="none")).model
    assert lead(Evidence(model, ALONE, {})).startswith("Classification into 3 classes (A, B, C), ")


# -- blends


@pytest.fixture(scope="module")
def blend():
    X, y = smooth(2100)
    recipe = Recipe(map="blend", D=40, grids=12, pilot="none", kernel="gaussian")
    with pytest.MonkeyPatch.context() as now:
        now.setattr(stacking, "LEAST_SHARE", 0.0)  # all stay, however little they bring
        return run.train(ArraySource(X, y), recipe, run.Settings(threads=1)).model


def of_members(model, *numbers):
    """The blend with some of its members alone, as where others bring nothing."""
    members, outputs = model.map.members, model.map.outputs
    kept = BlendMap(tuple(members[number] for number in numbers), outputs)
    told = [model.metadata["members"][number] for number in numbers]
    return replace(model, pipeline=replace(model.pipeline, map=kept), metadata={**model.metadata, "members": told})


def test_a_blend_tells_of_the_members_that_it_has(blend):
    whole, trees = (Evidence(model, ALONE, {}) for model in (blend, of_members(blend, 2)))
    assert ("blend of", "landmarks, random binning and trees") in tiles(whole)
    assert "λ of landmarks" in dict(tiles(whole))
    assert "gaussian kernel" in lead(whole)
    assert ("model", "trees") in tiles(trees)
    assert not [name for name, _ in tiles(trees) if "λ" in name]
    assert "kernel" not in lead(trees)
    settings = [dict(history.settings(each).table) for each in (whole, trees)]
    assert {"kernel", "length scale", "grids", "ridge"} <= set(settings[0])
    assert not {"kernel", "length scale", "gamma", "grids", "table bits", "ridge", "D"} & set(settings[1])
    for table in settings:
        assert not {"quantile", "huber epsilon"} & set(table)
        assert "auto" not in table.values()


def test_trees_show_the_columns_that_they_cut(blend):
    section = history.learned(Evidence(of_members(blend, 2), ALONE, {}))
    (picture,) = section.pictures
    cuts = blend.map.members[2].map.cut_counts()
    assert picture.name == "trees"
    assert picture.alt.startswith(f"Most cuts are in x{cuts.argmax()}")
    assert section.text == ""  # nothing of it was learned before the pass
    both = [picture.name for picture in history.learned(Evidence(blend, ALONE, {})).pictures]
    assert both == ["bins", "trees"]


def test_a_metric_that_was_tried_and_not_taken_is_not_shown(blend):
    """Every input would have the same share of it."""
    for form, shown in (("none", False), ("diagonal", True)):
        columns = [{"column": j, "share": 0.5} for j in range(2)]
        metadata = {**blend.metadata, "learning": {"metric": {"form": form, "columns": columns}}}
        section = history.learned(Evidence(replace(blend, metadata=metadata), ALONE, {}))
        assert ("metric" in [picture.name for picture in section.pictures]) == shown


def test_letters_that_the_fonts_of_pictures_lack_are_no_warning():
    """The page has them as text, for which browsers have fonts."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = Picture("p", "", bars(["東京", "b"], np.array([1.0, 2.0]), "x"), "").svg()
    assert "東京" in text


def test_cuts_in_the_order_of_a_category_have_its_name():
    """Trees cut in the places of its levels too, which are inputs after those of the table."""
    rng = np.random.default_rng(0)
    city, size = rng.integers(0, 8, 3000), rng.random(3000).astype(np.float32)
    X = np.column_stack([size, city[:, None] == np.arange(8)]).astype(np.float32)
    y = (city * 5 % 8) + size
    names = ["size", *(f"city={level}" for level in range(8))]
    source = ArraySource(X, y, feature_names=names)
    model = run.train(source, Recipe(map="trees", pilot="none"), run.Settings(threads=1)).model
    counts = model.map.cut_counts()
    assert len(counts) == 10
    assert counts[9] > 0
    thresholds = (model.map.thresholds, model.map.nodes.thresholds)
    assert counts.sum() == sum(np.isfinite(each).sum() for each in thresholds)
    (picture,) = history.learned(Evidence(model, ALONE, {})).pictures
    assert "order of city" in picture.alt
    assert "of high targets" in picture.caption


def test_trials_of_binning_and_with_a_metric_are_apart(blend):
    trial = {"scaling": "standard", "kernel": "gaussian", "length_scale": 2.0, "D": 8, "error": 0.5, "rows": 90}
    binned = [{**trial, "kernel": "bins:4", "grids": 4, "length_scale": width, "D": 0} for width in (1.0, 3.0)]
    trials = [trial, {**trial, "length_scale": 3.0, "metric": "full", "error": 0.2}, *binned]
    told = replace(blend, metadata={**blend.metadata, "pilot": trials, "compared": "landmarks 0.2, trees 0.3"})
    section = history.search(Evidence(told, ALONE, {}))
    widths, rounds = section.pictures[:2]
    (axes,) = widths.figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "gaussian, standard",
        "gaussian, standard, learned metric",
    ]
    assert (widths.name, rounds.name) == ("widths", "rounds")
    assert rounds.figure.axes[0].get_lines()[0].get_xdata().tolist() == [1, 2]
    assert "Errors of trials on the same rows: landmarks 0.2, trees 0.3." in section.text


def test_levels_are_shown_in_their_order():
    X = np.eye(4)[:, :3][np.random.default_rng(0).integers(0, 4, 60)]
    model = run.train(ArraySource(*smooth(60)), Recipe(D=8, pilot="none")).model
    column = Column("cut", "onehot", levels=("a", "b", "c"))
    found = importance.dependence_of(
        replace(model, pipeline=replace(model.pipeline, columns=Columns((column,)))),
        lambda X: X @ [[1.0], [2.0], [3.0]], X, "cut", np.arange(3),
    )  # fmt: skip
    assert found.values == ("a", "b", "c", "other")
    assert found.predictions[:, 0].tolist() == [1.0, 2.0, 3.0, 0.0]
