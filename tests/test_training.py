"""The whole road: right answers against naive references, and the same bits whatever the route."""

from dataclasses import replace

import numpy as np
import pytest
from interruptions import Stops
from sklearn.kernel_ridge import KernelRidge
from tables import labelled, smooth, write_zarr

from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.screening import draw_sample
from streamrf.features.fourier import KINDS
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.solvers.ridge import NormalEquations
from streamrf.statistics.gram import Gram
from streamrf.statistics.rowset import RowSet
from streamrf.support.errors import BudgetError, DataError, InputError, MismatchError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.threads import Threads
from streamrf.training.run import Settings, Training, train

FIXED = Recipe(D=64, kernel="gaussian", length_scale=1.5, scaling="standard", bits="8", ridge=1e-4, pilot="none")


def digest(source, recipe=FIXED, **settings):
    return train(source, recipe, Settings(**settings)).model.metadata["statistics_digest"]


@pytest.fixture(scope="module")
def reference():
    X, y = smooth()
    return X, y, digest(ArraySource(X, y, chunk_rows=700))


@pytest.mark.parametrize("chunk", [1, 37, 500, 2999, 3000, 10_000])
def test_bits_do_not_depend_on_the_chunks(tmp_path, reference, chunk):
    X, y, expected = reference
    if chunk == 1:  # a store of single rows is slow to write: the array source will do
        assert digest(ArraySource(X, y, chunk_rows=1)) == expected
    else:
        assert digest(open_source(write_zarr(tmp_path / "t.zarr", X, y, min(chunk, 3000), columns=4))) == expected


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_do_not_depend_on_threads_or_order(reference, threads):
    X, y, expected = reference
    rng = np.random.default_rng(threads)
    assert digest(ArraySource(X, y, chunk_rows=300), threads=threads, order=rng.permutation) == expected


@pytest.mark.parametrize("bits", ["7", "8", "12"])
def test_bits_do_not_depend_on_the_product(reference, bits, monkeypatch):
    from streamrf.statistics import gram_kernels as products

    X, y, _ = reference
    found = set()
    for name in products.proven_products(int(bits)):
        monkeypatch.setattr(products, "_fastest", lambda bits, count, name=name: name)
        found.add(digest(ArraySource(X, y, chunk_rows=1000), FIXED.with_(bits=bits)))
    assert len(found) == 1


@pytest.mark.parametrize("bits", ["7", "8", "12", "float32", "float64"])
@pytest.mark.parametrize("form", ["phase", "pairs"])
def test_weights_are_those_of_a_dense_ridge(bits, form):
    X, y = smooth(1500)
    result = train(ArraySource(X, y), FIXED.with_(bits=bits, form=form))
    model = result.model
    with Threads(1) as threads:
        scaled = model.scaling.transform(X, model.map.precision.inputs)
        Z, served = (model.map.dense(scaled, threads, unrounded=each) for each in (False, model.pipeline.unrounded))
        found = model.scores(X, threads)[:, 0]
    centred = Z - Z.mean(axis=0)
    w = np.linalg.solve(centred.T @ centred / len(Z) + 1e-4 * np.eye(64), centred.T @ (y - y.mean()) / len(Z))
    expected = (served - Z.mean(axis=0)) @ w + y.mean()
    assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()
    if bits == "float64":
        assert np.abs(found - expected).max() < 1e-9


def test_many_features_approach_exact_kernel_ridge():
    X, y = smooth(600)
    Xt, yt = smooth(300, seed=1)
    result = train(ArraySource(X, y), FIXED.with_(D=4000, bits="12", ridge=1e-3, holdout=0.0))
    with Threads(1) as threads:
        scaled, test = (result.model.scaling.transform(part) for part in (X, Xt))
        found = result.model.scores(Xt, threads)[:, 0]
    exact = KernelRidge(alpha=1e-3 * len(X), kernel="rbf", gamma=1 / (2 * 1.5**2)).fit(scaled, y - y.mean())
    gap = found - (exact.predict(test) + y.mean())
    assert np.sqrt((gap**2).mean()) < 0.1 * yt.std()


def test_hold_out_rows_join_the_sums():
    X, y = smooth()
    y = np.clip(y, -1, 1)  # so that the rows to fit alone have the range of all
    fixed = FIXED.with_(map="mc", scaling="none")  # which no sample of rows has a part in
    with_holdout = train(ArraySource(X, y), fixed.with_(holdout=0.2))
    without = train(ArraySource(X, y), fixed.with_(holdout=0.0))
    assert with_holdout.state.digest() == without.state.digest()
    assert with_holdout.model.metadata["holdout"]["rows"] == pytest.approx(600, abs=80)
    assert without.model.metadata["holdout"] is None


def test_merge_and_subtract_give_the_bits_of_the_rest():
    X, y = smooth()
    model = train(ArraySource(X, y), FIXED).model
    source = ArraySource(X, y)
    with Threads(2) as threads:
        gram = Gram.on_this_machine(model.scaling, model.map, model.coding, 2)
        parts = []
        for rows in (slice(0, 1000), slice(1000, 3000), slice(0, 3000)):
            state = gram.zero()
            gram.update(state, source.read(source.chunks()[0]).take(rows), threads)
            parts.append(state)
    first, second, both = parts
    joined = first.copy()
    joined += second
    assert joined.digest() == both.digest()
    both -= second
    assert both.digest() == first.digest()


@pytest.mark.parametrize("classes", [2, 3])
def test_classification_with_string_labels(classes):
    X, y = labelled(4000, classes)
    names = np.array([f"class {c}" for c in range(classes)])[y]
    model = train(ArraySource(X, names), Recipe(D=256, seed=1)).model
    Xt, yt = labelled(1000, classes, seed=5)
    with Threads(2) as threads:
        scores = model.scores(Xt, threads)
    predicted = model.labels(model.codes(scores))
    assert (predicted == np.array([f"class {c}" for c in range(classes)])[yt]).mean() > 0.75
    chances = model.probabilities(scores)
    assert chances.shape == (1000, classes)
    assert np.allclose(chances.sum(axis=1), 1)
    assert (chances.argmax(axis=1) == model.codes(scores)).all()


def test_several_outputs_are_several_models():
    X, y = smooth(1500)
    Y = np.stack([y, -2 * y + 1, X[:, 3]], axis=1)
    both = train(ArraySource(X, Y), FIXED.with_(bits="12")).model
    with Threads(1) as threads:
        scores = both.scores(X, threads)
        for output in range(3):
            alone = train(ArraySource(X, Y[:, output]), FIXED.with_(bits="12")).model
            assert np.allclose(alone.scores(X, threads)[:, 0], scores[:, output], atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint16, np.int64, bool])
def test_inputs_of_any_type(dtype):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2 if dtype is bool else 9, (800, 4)).astype(dtype)
    y = X[:, 0].astype(float) * X[:, 1] + rng.standard_normal(800) * 0.01
    model = train(ArraySource(X, y), Recipe(D=200, scaling="standard", kernel="gaussian")).model
    assert model.metadata["holdout"]["r2"] > 0.9


def test_interrupt_and_resume_give_the_same_bits(tmp_path, reference):
    X, y, expected = reference
    source = ArraySource(X, y, chunk_rows=500)
    settings = Settings(checkpoint=tmp_path / "kept", checkpoint_every=3600)
    with pytest.raises(Interrupted, match=r"1,500 of 3,000 rows are done and kept in"):
        run_in_small_spans(source, settings, Stops(3), threads=2)
    with Threads(1) as threads:
        again = Training(source, FIXED, settings, Reporter(), threads)
        assert again.run().state.digest() == train(source, FIXED).state.digest() == expected_state(expected, X, y)
    assert not (tmp_path / "kept").exists()


def run_in_small_spans(source, settings, reporter, threads):
    """A run that reads 500 rows at a time, so that there is something between the blocks."""
    with Threads(threads) as pool:
        training = Training(source, FIXED, settings, reporter, pool)
        usual = training._agreed
        training._agreed = lambda plan: usual(replace(plan, span_rows=500))
        training.run()


def expected_state(expected, X, y):
    assert digest(ArraySource(X, y)) == expected
    return expected


def test_a_checkpoint_of_other_data_or_another_recipe_is_refused(tmp_path, reference):
    X, y, _ = reference
    settings = Settings(checkpoint=tmp_path / "kept", checkpoint_every=0)
    with pytest.raises(Interrupted):
        run_in_small_spans(ArraySource(X, y, chunk_rows=500), settings, Stops(2), threads=1)
    with pytest.raises(MismatchError, match="data"):
        train(ArraySource(X + 1, y), FIXED, settings)
    with pytest.raises(MismatchError, match="D"):
        train(ArraySource(X, y, chunk_rows=500), FIXED.with_(D=32), settings)


def test_rows_with_nan_are_refused_or_dropped():
    X, y = smooth()
    X = X.copy()
    X[1234, 2] = np.nan
    with pytest.raises(DataError, match=r"row 1234"):
        train(ArraySource(X, y, chunk_rows=500), FIXED)
    dropped = train(ArraySource(X, y, chunk_rows=500), FIXED.with_(nan="drop"))
    assert dropped.model.metadata["dropped"] == 1
    assert dropped.model.metadata["rows"] == 2999


def test_a_budget_that_is_too_small_is_refused_before_work():
    X, y = smooth()
    with pytest.raises(BudgetError, match=r"projected to need .* the budget is 100 MB"):
        train(ArraySource(X, y), FIXED.with_(D=5000), Settings(memory=100_000_000))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"D": 0}, "`D=0`"),
        ({"bits": "9"}, "`bits='9'`"),
        ({"scaling": "odd"}, "`scaling='odd'`"),
        ({"kernel": "sinc"}, "sinc"),
        ({"ridge": -1.0}, "`ridge=-1.0`"),
        ({"form": "pairs", "D": 63}, "must be even"),
        ({"map": "nosuch"}, "`map='nosuch'`"),
    ],
)
def test_bad_recipes_get_one_sentence(change, message):
    with pytest.raises(InputError, match=message):
        FIXED.with_(**change)


def test_models_survive_the_file_bit_for_bit(tmp_path):
    X, y = labelled(2000, 3)
    result = train(ArraySource(X, y), FIXED)
    result.model.save(tmp_path / "m.model", state=result.state)
    again = Model.load(tmp_path / "m.model")
    with Threads(1) as threads:
        assert np.array_equal(again.scores(X, threads), result.model.scores(X, threads))
    assert again.metadata["statistics_digest"] == result.state.digest()


def test_a_near_singular_system_has_a_stable_answer():
    rng = np.random.default_rng(0)
    X = np.repeat(rng.standard_normal((30, 4)).astype(np.float32), 20, axis=0)  # 30 different rows, 200 features
    y = X[:, 0].astype(float)
    model = train(ArraySource(X, y), FIXED.with_(D=200, ridge=0.0, bits="12")).model
    with Threads(1) as threads:
        assert np.abs(model.scores(X, threads)[:, 0] - y).max() < 0.1


def test_predictions_do_not_depend_on_the_block():
    X, y = smooth(1000)
    model = train(ArraySource(X, y), FIXED).model
    with Threads(2) as two, Threads(1) as one:
        whole = model.scores(X, two)
        parts = np.concatenate([model.scores(X[i : i + 33], one) for i in range(0, 1000, 33)])
    assert np.array_equal(whole, parts)


def test_target_variance_and_means_come_from_the_same_sums():
    X, y = smooth(700)
    result = train(ArraySource(X, y), FIXED)
    equations = NormalEquations.from_state(result.state, result.model.map, result.model.coding)
    assert equations.target_mean[0] == pytest.approx(y.mean(), abs=1e-7)
    assert equations.target_variance[0] == pytest.approx(y.var(), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_map_trains_and_survives_the_file(tmp_path, kind):
    X, y = smooth(1500)
    result = train(ArraySource(X, y), FIXED.with_(map=kind, D=200, bits="12", ridge=1e-6, length_scale=2.0))
    assert result.model.metadata["holdout"]["r2"] > 0.6
    result.model.save(tmp_path / "m.model")
    with Threads(2) as threads:
        again = Model.load(tmp_path / "m.model").scores(X, threads)
        assert np.array_equal(again, result.model.scores(X, threads))
        assert np.array_equal(again[:77], result.model.scores(X[:77], threads))


def test_a_map_that_the_kernel_does_not_have_is_refused_with_what_to_use():
    X, y = smooth(300)
    with pytest.raises(InputError, match="orthogonal frequencies need a kernel of the Euclidean distance"):
        train(ArraySource(X, y), FIXED.with_(map="orthogonal", kernel="laplacian"))


def test_a_table_that_is_only_sampled_gives_the_same_bits_in_any_chunks():
    X, y = smooth(30_000, d=3)
    found = {
        digest(ArraySource(X, y, chunk_rows=c), FIXED.with_(D=16, length_scale=None)) for c in (777, 10_000, 30_000)
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full(50, 1.5), r"the target is constant \(1.5\)"),
        (np.full(50, 3), r"one class only \(3\)"),
        (np.linspace(-1, 1, 50) * 1e300, "as large as 1e.300.*divide them"),
        (np.linspace(-1, 1, 50) * 1e-40, "within 2e-40 of each other.*multiply them"),
    ],
)
def test_targets_from_which_nothing_can_be_learned_get_one_sentence(y, message):
    with pytest.raises(DataError, match=message):
        train(ArraySource(np.random.default_rng(0).standard_normal((50, 2)), y), Recipe(D=8))


@pytest.mark.parametrize("rows", [2, 3, 9])
def test_a_handful_of_rows_is_enough_for_a_model(rows):
    X = np.random.default_rng(0).standard_normal((rows, 2))
    result = train(ArraySource(X, np.arange(rows) + 0.5), Recipe(D=8))
    assert result.model.metadata["rows"] == rows


class Torn(ArraySource):
    """Has rows that cannot be read, until they are mended."""

    mended = False

    def read(self, span):
        if span.start <= 2200 < span.stop and not Torn.mended:
            raise DataError("chunk 4 cannot be decoded")
        return super().read(span)


def test_what_was_summed_before_an_unreadable_chunk_is_kept(tmp_path, reference, monkeypatch):
    X, y, expected = reference
    settings = Settings(checkpoint=tmp_path / "kept", checkpoint_every=3600)
    read = []
    monkeypatch.setattr(Torn, "mended", False)
    source = Torn(X, y, chunk_rows=500)
    monkeypatch.setattr("streamrf.training.prepare.draw_sample", lambda _, *rest: draw_sample(ArraySource(X, y), *rest))
    with pytest.raises(DataError, match="chunk 4"):
        run_in_small_spans(source, settings, Reporter(), threads=1)
    monkeypatch.setattr(Torn, "mended", True)
    monkeypatch.setattr(Torn, "read", lambda self, span: read.append(span) or ArraySource.read(self, span))
    with Threads(1) as pool:
        again = Training(source, FIXED, settings, Reporter(), pool).run()
    assert again.state.digest() == expected
    assert sum(map(len, read)) < 1500  # what is left, and a few rows for the fingerprint


def test_a_block_that_fails_leaves_the_checkpoint_before_it(tmp_path, reference, monkeypatch):
    """Half of it may be in the sums: they are not saved, and what was saved is not replaced."""
    X, y, expected = reference
    settings = Settings(checkpoint=tmp_path / "kept", checkpoint_every=0)
    update = Gram.update

    def fail(gram, state, block, *rest, **more):
        update(gram, state, block, *rest, **more)
        if 2200 in block.index:
            raise DataError("a label that nobody knows")

    with monkeypatch.context() as patch:
        patch.setattr(Gram, "update", fail)
        with pytest.raises(DataError, match="nobody knows"):
            run_in_small_spans(ArraySource(X, y, chunk_rows=500), settings, Reporter(), threads=1)
    with Threads(1) as pool:
        again = Training(ArraySource(X, y, chunk_rows=500), FIXED, settings, Reporter(), pool)
        assert RowSet.from_json(again._saved().ledger).count == 2000
        assert again.run().state.digest() == expected


@pytest.mark.parametrize("map", ["orthogonal", "sorf", "fastfood", "moment-matched"])
def test_the_pilot_tries_only_kernels_that_the_map_has(map):
    """Rough targets make the Laplacian kernel the best, which none of these can draw."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 3))
    y = np.sign(X).prod(axis=1) + 0.1 * np.sign(X[:, 0] - 0.3)
    model = train(ArraySource(X, y), Recipe(D=64, map=map, bits="8")).model
    assert model.recipe.map == map
    assert model.recipe.kernel in ("gaussian", "matern32")
