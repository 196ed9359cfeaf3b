"""Landmarks: values of the kernel, the same bits by every route, and models like those of any map."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from cluster_tools import local_cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from interruptions import Stops
from tables import labelled, smooth, write_zarr

from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.engines.cluster import ClusterEngine
from streamrf.features.base import Scorer
from streamrf.features.fourier import kind_of
from streamrf.features.fourier.landmarks import LandmarkMap
from streamrf.features.kernels import make_kernel
from streamrf.features.pipeline import build_map, map_from_parts
from streamrf.features.precision import PRECISIONS, make_precision
from streamrf.features.profiles import PROFILES
from streamrf.recipe import Recipe
from streamrf.statistics.gram import Gram
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.threads import ALONE, Threads
from streamrf.training.run import Settings, Training, train

FIXED = Recipe(
    D=64, map="landmarks", kernel="matern12", length_scale=3.0, scaling="standard", bits="12", ridge=1e-6, pilot="none"
)
METRICS = {"none": None, "diagonal": np.linspace(0.1, 2.0, 5), "full": np.cos(np.arange(25.0)).reshape(5, 5)}


def drawn(kernel="matern12", bits="12", metric=None, D=70, sample=None, width=2.5) -> LandmarkMap:
    rows = np.random.default_rng(3).standard_normal((300, 5)) if sample is None else sample
    precision = make_precision(bits)
    wanted = make_kernel(kernel, length_scale=width)
    return build_map(
        "landmarks", wanted, D, rows.shape[1], form="phase", precision=precision, seed=1, sample=rows, metric=metric
    )


def inputs(n=203, dtype=np.float32):
    return np.random.default_rng(4).standard_normal((n, 5)).astype(dtype)


def features(map: LandmarkMap, X: np.ndarray, threads=ALONE) -> np.ndarray:
    out = map.block(len(X), map.precision.features)
    map.compute(X, out, threads)
    return out[:, : map.n_features]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bits", PRECISIONS)
@pytest.mark.parametrize("kernel", PROFILES)
def test_features_are_values_of_the_kernel(kernel, bits, metric):
    map, factor = drawn(kernel, bits, METRICS[metric]), METRICS[metric]
    X = inputs(dtype=map.precision.inputs)

    def moved(rows):
        return rows if factor is None else rows * factor if factor.ndim == 1 else rows @ factor

    exact = make_kernel(kernel, length_scale=2.5)(moved(X.astype(np.float64)), moved(map.rows))
    found, scale = features(map, X), map.precision.scale
    off = 0.5 + 1e-6 * scale if map.precision.exact else {"float32": 1e-6, "float64": 4e-15}[bits]
    assert np.abs(found - exact * scale).max() < off
    assert found.min() >= 0
    assert found.max() <= scale


def test_a_landmark_is_at_no_distance_from_itself_and_far_rows_are_nothing():
    for bits, one in (("12", 2047), ("float32", 1.0), ("float64", 1.0)):
        map = drawn(bits=bits, metric=METRICS["full"])
        assert (np.diag(features(map, map.rows.astype(map.precision.inputs))) == one).all()
        assert features(map, np.full((1, 5), 1e30, map.precision.inputs)).max() < 1e-30


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=6), st.integers(1, 3), st.sampled_from(sorted(PROFILES)))
def test_bits_do_not_depend_on_blocks_or_threads(sizes, count, kernel):
    map, X = drawn(kernel, "float32", METRICS["full"]), inputs(sum(sizes))
    with Threads(count) as threads:
        whole = features(map, X, threads)
    parts = [features(map, X[i:j]) for i, j in pairwise(np.cumsum([0, *sizes]))]
    assert np.array_equal(whole, np.concatenate(parts))


def test_bits_do_not_depend_on_the_layout_or_on_other_landmarks():
    map, X = drawn(bits="float64"), inputs(dtype=np.float64)
    assert np.array_equal(features(map, np.asfortranarray(X)), features(map, X))
    some = [3, 41, 69]
    assert np.array_equal(features(replace(map, rows=map.rows[some]), X), features(map, X)[:, some])


def test_scores_do_not_depend_on_blocks_or_threads():
    map, X = drawn(), inputs(700)
    scorer = Scorer(map, np.random.default_rng(0).standard_normal((70, 2)), np.zeros(2))
    with Threads(2) as threads:
        whole = scorer.scores(X, threads)
    assert np.array_equal(whole, np.concatenate([scorer.scores(X[i : i + 33], ALONE) for i in range(0, 700, 33)]))


def test_landmarks_are_different_rows_of_the_sample():
    sample = np.repeat(np.random.default_rng(0).standard_normal((90, 5)), 7, axis=0)
    rows = {tuple(row) for row in drawn(sample=sample).rows}
    assert len(rows) == 70
    assert rows <= {tuple(row) for row in sample}
    few = drawn(sample=sample, D=200).rows
    assert np.array_equal(few[:90], few[90:180])


def test_it_comes_back_from_its_parts_and_from_another_process():
    map, X = drawn(metric=METRICS["full"]), inputs()
    for again in (map_from_parts(*map.to_parts()), pickle.loads(pickle.dumps(map))):
        assert np.array_equal(features(again, X), features(map, X))


@pytest.mark.parametrize(
    ("document", "arrays"),
    [
        ({"kernel": "cauchy"}, {}),
        ({}, {"landmarks.rows": None}),
        ({}, {"landmarks.rows": np.zeros(5)}),
        ({}, {"landmarks.rows": np.zeros((4, 5), np.float32)}),
        ({}, {"landmarks.factor": np.zeros((5, 4))}),
        ({}, {"landmarks.factor": np.full(5, np.nan)}),
    ],
)
def test_damaged_parts_are_refused(document, arrays):
    good = drawn().to_parts()
    parts = {name: array for name, array in {**good[1], **arrays}.items() if array is not None}
    with pytest.raises(FileFormatError, match="landmarks are damaged"):
        map_from_parts({**good[0], **document}, parts)


def test_kernels_without_a_profile_are_refused():
    with pytest.raises(InputError, match="`map='landmarks'` has no cauchy kernel: set `kernel` to one of gaussian"):
        drawn("cauchy")
    with pytest.raises(InputError, match="at least two rows"):
        drawn(sample=np.zeros((1, 5)))
    assert kind_of("landmarks").takes_metric


# -- whole runs


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_zarr(tmp_path_factory.mktemp("data") / "t.zarr", *smooth(3000), chunk=250)


@pytest.fixture(scope="module")
def expected(table):
    return train(open_source(table), FIXED).state.digest()


def test_bits_of_a_run_are_the_same_in_any_chunks_on_any_threads_and_on_two_workers(table, expected):
    X, y = smooth(3000)
    for chunk, threads in ((700, 1), (3000, 2)):
        run = train(ArraySource(X, y, chunk_rows=chunk), FIXED, Settings(threads=threads))
        assert run.state.digest() == expected
    with local_cluster(2) as (_, client):
        assert train(open_source(table), FIXED, Settings(engine=ClusterEngine(client))).state.digest() == expected


def test_bits_are_the_same_after_a_stop(table, expected, tmp_path):
    kept, source = Settings(checkpoint=tmp_path / "kept", checkpoint_every=0), open_source(table)
    with Threads(2) as threads:
        run = Training(source, FIXED, kept, Stops(3), threads)
        usual = run._agreed
        run._agreed = lambda plan: usual(replace(plan, span_rows=500))
        with pytest.raises(Interrupted):
            run.run()
    with Threads(1) as threads:
        assert Training(source, FIXED, kept, Reporter(), threads).run().state.digest() == expected


def test_rows_join_and_leave_with_the_bits_of_the_rest():
    X, y = smooth(2000)
    model = train(ArraySource(X, y), FIXED).model
    gram, whole = Gram.on_this_machine(model.scaling, model.map, model.coding, 1), ArraySource(X, y)
    first, second, both = (gram.zero() for _ in range(3))
    for state, rows in ((first, slice(0, 1200)), (second, slice(1200, 2000)), (both, slice(0, 2000))):
        gram.update(state, whole.read(whole.chunks()[0]).take(rows), ALONE)
    joined = first.copy()
    joined += second
    assert joined.digest() == both.digest()
    both -= second
    assert both.digest() == first.digest()


def test_the_pilot_tries_landmarks_as_they_are():
    X, y = smooth(1500)
    model = train(ArraySource(X, y), Recipe(D=100, map="landmarks")).model
    assert isinstance(model.map, LandmarkMap)
    assert {trial["kernel"] for trial in model.metadata["pilot"]} == {"gaussian", "laplacian", "matern12"}
    assert model.metadata["holdout"]["r2"] > 0.8


def test_classes_and_other_solvers():
    X, y = labelled(1500, 3)
    for changes in ({"solver": "cg"}, {"loss": "logistic"}):
        assert train(ArraySource(X, y), FIXED.with_(**changes)).model.metadata["holdout"]["error"] < 0.45
