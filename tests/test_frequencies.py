"""Each way of drawing frequencies: the conformance suite, and the laws that are its own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from frequencies_conformance import ALL, COLUMNS, RADIAL, FrequencyConformance, approximation, exact, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, optimize, special, stats

from streamrf.features.fourier import KINDS, Frequencies, Learning, check, draw, draw_phases, kind_of, quasi, stream
from streamrf.features.fourier.fitted import (
    alignments,
    best_weights,
    inclusion,
    normal_equations,
    onto_simplex,
    systematic,
    target_columns,
)
from streamrf.features.fourier.quasi import (
    dyadic_factors,
    first_primes,
    gap_variances,
    halton_points,
    lattice_points,
    net_points,
    shifted_factors,
    sobol_points,
)
from streamrf.features.fourier.sobol import COORDINATES, sobol_integers
from streamrf.features.kernels import make_kernel
from streamrf.features.learned.ekal import nonnegative_solution
from streamrf.support.errors import FileFormatError, InputError

GAUSSIAN = make_kernel("gaussian")
SHORT = Learning(iterations=1, steps=1)
CHANCE = 1e-4  # below it a deviation is no accident, however many such tests there are


class TestMonteCarlo(FrequencyConformance):
    kind = "mc"


class TestOrthogonal(FrequencyConformance):
    kind, kernels, times_mc = "orthogonal", RADIAL, 0.75


class TestSorf(FrequencyConformance):
    kind, kernels, times_mc = "sorf", RADIAL, 0.85


class TestFastfood(FrequencyConformance):
    kind, kernels, times_mc, shrinks = "fastfood", RADIAL, 1.5, 0.4


class TestHalton(FrequencyConformance):
    kind, times_mc, shrinks = "halton", 0.75, 0.2


class TestSobol(FrequencyConformance):
    kind, times_mc, shrinks = "sobol", 0.75, 0.2


class TestLattice(FrequencyConformance):
    kind, times_mc, shrinks = "lattice", 0.75, 0.25


class TestDigitalNet(FrequencyConformance):
    kind, times_mc, shrinks = "digital-net", 0.75, 0.25


class TestMomentMatched(FrequencyConformance):
    kind, times_mc, unbiased = "moment-matched", 0.75, False
    kernels = ("gaussian", "cauchy", "matern32", "matern52")


class TestWeighted(FrequencyConformance):
    kind, times_mc, unbiased = "weighted", 0.6, False


class TestAligned(FrequencyConformance):
    """It leans towards the targets on purpose, so that its errors in the kernel say nothing: see TestAlignment."""

    kind = "aligned"
    test_unbiased = test_error_shrinks_at_its_rate = test_against_independent_draws = None
    test_each_kernel_it_is_defined_for = None


class TestEkalSample(FrequencyConformance):
    """A hundred rows of noise are little to learn from in a few steps, and all the same it is better than its start."""

    kind, times_mc, learning = "ekal-sample", 0.6, Learning(iterations=6)
    test_unbiased = test_error_shrinks_at_its_rate = None  # its errors are those of a fit: see test_ekal


class TestEkalCluster(FrequencyConformance):
    kind, times_mc, learning = "ekal-cluster", 0.6, Learning(iterations=6)
    test_unbiased = test_error_shrinks_at_its_rate = None


class TestSupervised(FrequencyConformance):
    """It serves the targets, not the kernel: see test_supervised."""

    kind, learning = "supervised", Learning(iterations=2, steps=5)
    test_unbiased = test_error_shrinks_at_its_rate = test_against_independent_draws = None
    test_each_kernel_it_is_defined_for = None


DRAWN = [kind for kind in KINDS if not kind_of(kind).whole]


class TestNames:
    def test_every_kind_has_its_conformance_class(self) -> None:
        own = [kind for kind in FrequencyConformance.__subclasses__() if kind.__module__ == __name__]
        assert {kind.kind for kind in own} == set(DRAWN)

    def test_unknown_kind(self) -> None:
        with pytest.raises(InputError, match="no 'latice' frequencies: choose one of mc, orthogonal"):
            kind_of("latice")

    @pytest.mark.parametrize("kind", DRAWN)
    @pytest.mark.parametrize("kernel", ALL)
    def test_check_refuses_what_draw_refuses(self, kind: str, kernel: str) -> None:
        sample, _, targets = rows()
        outcomes = []
        for attempt in (
            lambda: check(kind, make_kernel(kernel)),
            lambda: draw(kind, make_kernel(kernel), 4, COLUMNS, 0, sample=sample, targets=targets, learning=SHORT),
        ):
            try:
                attempt()
                outcomes.append(None)
            except InputError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]

    @pytest.mark.parametrize("kind", DRAWN)
    def test_says_whether_it_looks_at_data(self, kind: str) -> None:
        known, sample = kind_of(kind), rows()[0]
        if known.sample == "needed":
            with pytest.raises(InputError, match=f"{kind} frequencies are fitted to"):
                draw(kind, GAUSSIAN, 4, COLUMNS, 0)
            return
        blind, seeing = (draw(kind, GAUSSIAN, 4, COLUMNS, 0, sample=s).dense() for s in (None, sample))
        assert np.array_equal(blind, seeing) == (known.sample == "ignored")
        assert (draw(kind, GAUSSIAN, 4, COLUMNS, 0).W is None) == known.structured

    def test_aligned_needs_targets(self) -> None:
        with pytest.raises(InputError, match="fitted to targets and there are none"):
            draw("aligned", GAUSSIAN, 4, COLUMNS, 0, sample=rows()[0])

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"F": 0}, "at least one frequency and one column, not 0 and 6"),
            ({"sample": np.zeros((5, 4))}, r"shape \(5, 4\): it must have rows of 6 columns"),
            ({"sample": np.zeros((5, 6)), "targets": np.zeros(4)}, "5 rows and 4 targets"),
        ],
    )
    def test_requests_that_cannot_be_right(self, wrong: dict, message: str) -> None:
        with pytest.raises(InputError, match=message):
            draw(**{"kind": "mc", "kernel": GAUSSIAN, "F": 3, "d": 6, "seed": 0, **wrong})


class TestStreams:
    def test_phases_are_uniform_and_their_own(self) -> None:
        phases = draw_phases(4000, 3)
        assert stats.kstest(phases / (2 * np.pi), "uniform").pvalue > CHANCE
        assert np.array_equal(phases, draw_phases(4000, 3))
        assert not np.array_equal(phases, draw_phases(4000, 4))
        assert np.array_equal(phases[:10], draw_phases(10, 3))

    def test_streams_of_two_names_are_unrelated(self) -> None:
        a, b = stream(5, "frequencies").random(4000), stream(5, "phases").random(4000)
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.06
        assert np.array_equal(a, stream(5, "frequencies").random(4000))


class TestOrthogonalLaws:
    def test_blocks_are_orthogonal_and_norms_follow_the_kernel(self) -> None:
        kernel = make_kernel("matern32", length_scale=2.0)
        W = draw("orthogonal", kernel, 5 * 400, 5, 2).dense()
        gram = W[:5] @ W[:5].T
        np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-12 * gram.max())
        norms, expected = np.linalg.norm(W, axis=1), np.linalg.norm(kernel.sample(stream(1, "x"), 5000, 5), axis=1)
        assert stats.ks_2samp(norms, expected).pvalue > CHANCE

    def test_directions_are_uniform(self) -> None:
        first = np.stack([draw("orthogonal", GAUSSIAN, 2, 3, s).dense()[1] for s in range(400)])
        first /= np.linalg.norm(first, axis=1, keepdims=True)
        for axis in range(3):  # a coordinate of a uniform direction in three dimensions is uniform in [-1, 1]
            assert stats.kstest((first[:, axis] + 1) / 2, "uniform").pvalue > CHANCE


class TestStructuredLaws:
    @pytest.mark.parametrize("kind", ["fastfood", "sorf"])
    def test_each_frequency_is_a_draw_of_the_spectral_measure(self, kind: str) -> None:
        draws = np.stack([draw(kind, GAUSSIAN, 20, 16, s).dense()[11] for s in range(600)])
        assert stats.kstest((draws**2).sum(axis=1), stats.chi2(16).cdf).pvalue > CHANCE
        for column in (0, 7, 15):
            assert stats.kstest(draws[:, column], "norm").pvalue > CHANCE

    def test_sorf_rows_are_orthogonal(self) -> None:
        W = draw("sorf", GAUSSIAN, 64, 64, 1).dense()
        np.testing.assert_allclose(W @ W.T, np.diag((W**2).sum(axis=1)), atol=1e-9)

    def test_fastfood_is_the_product_of_its_factors(self) -> None:
        factors = draw("fastfood", GAUSSIAN, 20, 5, 1).factors
        H = linalg.hadamard(8)
        blocks = []
        for (signs, gauss), permutation in zip(factors.diagonals, factors.permutations, strict=True):
            P = np.eye(8)[permutation]
            blocks.append(H @ np.diag(gauss.astype(float)) @ P @ H @ np.diag(signs.astype(float)))
        expected = factors.scale[:, None] * np.concatenate(blocks)[:20, :5]
        np.testing.assert_allclose(factors.dense(), expected, rtol=1e-12, atol=1e-12)


def cells(x: np.ndarray, count: int) -> np.ndarray:
    """How many points fall in each of ``count`` equal intervals."""
    return np.bincount((x * count).astype(int), minlength=count)


class TestPointSets:
    SPREAD = gap_variances(7, None, 1.0)

    def test_first_primes(self) -> None:
        naive = [n for n in range(2, 8000) if all(n % k for k in range(2, int(n**0.5) + 1))]
        for count in (1, 2, 5, 6, 7, 100, 1000):
            assert first_primes(count).tolist() == naive[:count]

    @pytest.mark.parametrize("seed", range(3))
    def test_halton_has_one_point_in_each_interval_of_its_base(self, seed: int) -> None:
        points = halton_points(np.random.default_rng(seed), 81, np.ones(3))
        assert np.all(cells(points[:, 1], 81) == 1)
        assert np.all(cells(points[:64, 0], 64) == 1)
        assert np.all(cells(points[:25, 2], 25) == 1)

    def test_halton_is_even_in_two_dimensions_at_once(self) -> None:
        points = halton_points(np.random.default_rng(0), 72, np.ones(2))
        boxes = (points[:, 0] * 8).astype(int) * 9 + (points[:, 1] * 9).astype(int)
        assert np.all(np.bincount(boxes, minlength=72) == 1)

    @pytest.mark.parametrize("make", [sobol_points, net_points])
    def test_nets_of_a_power_of_two_are_stratified_in_each_coordinate(self, make: object) -> None:
        points = make(np.random.default_rng(1), 64, self.SPREAD)
        assert all(np.all(cells(column, 64) == 1) for column in points.T)

    def test_sobol_is_a_net_in_its_first_two_coordinates(self) -> None:
        points = sobol_points(np.random.default_rng(1), 64, self.SPREAD)
        for a in range(7):
            boxes = (points[:, 0] * 2**a).astype(int) * 2 ** (6 - a) + (points[:, 1] * 2 ** (6 - a)).astype(int)
            assert np.all(np.bincount(boxes, minlength=64) == 1)

    @pytest.mark.parametrize("F", [1, 2, 3, 100, 2048])
    def test_our_direction_numbers_are_scipys(self, F: int) -> None:
        theirs = stats.qmc.Sobol(COORDINATES, scramble=False, bits=30).random_base2((F - 1).bit_length())[:F]
        assert np.array_equal(sobol_integers(F, COORDINATES, 30), theirs * 2**30)

    def test_sobol_without_scrambling_would_be_scipys(self) -> None:
        """In any order: the leading bits of the points differ from the first one's as those of scipy's sequence do."""
        ours = sobol_points(np.random.default_rng(2), 16, np.ones(3)) >= 0.5
        theirs = stats.qmc.Sobol(3, scramble=False).random_base2(4) >= 0.5
        assert sorted((ours ^ ours[0]).tolist()) == sorted((theirs ^ theirs[0]).tolist())

    def test_more_dimensions_than_direction_numbers_were_published_for(self) -> None:
        W = draw("sobol", GAUSSIAN, 4, 21_300, 0).dense()
        assert np.mean(W**2) == pytest.approx(1, abs=0.05)

    @pytest.mark.parametrize("make", [sobol_points, lattice_points])
    def test_no_two_of_many_coordinates_are_copies(self, make: object) -> None:
        """Far more coordinates than points: correlations of normal quantiles are those of independent draws."""
        W = special.ndtri(make(np.random.default_rng(0), 64, gap_variances(300, None, 1.0)))
        correlations = np.corrcoef(W, rowvar=False)[np.triu_indices(300, 1)]
        assert np.abs(correlations).max() < 0.75
        assert np.sqrt(np.mean(correlations**2)) == pytest.approx(1 / np.sqrt(64), rel=0.1)

    @given(st.integers(1, 200), st.integers(1, 12), st.integers(0, 99))
    @settings(max_examples=40, deadline=None)
    def test_lattice_is_equally_spaced_in_each_coordinate(self, F: int, coordinates: int, seed: int) -> None:
        points = lattice_points(np.random.default_rng(seed), F, gap_variances(coordinates, None, 1.0))
        gaps = np.diff(np.sort(points, axis=0), axis=0)
        np.testing.assert_allclose(gaps, 1.0 / F, atol=1e-9)

    def test_lattice_differences_are_lattice_points(self) -> None:
        points = lattice_points(np.random.default_rng(3), 101, self.SPREAD)
        found = {tuple(p) for p in np.rint((points - points[0]) * 101).astype(int) % 101}
        sums = {tuple((np.add(a, b)) % 101) for a, b in itertools.product(list(found)[:20], repeat=2)}
        assert sums <= found

    @pytest.mark.parametrize("make", [halton_points, sobol_points, lattice_points, net_points])
    def test_each_point_is_uniform(self, make: object) -> None:
        rng = np.random.default_rng(0)
        draws = np.stack([make(rng, 6, np.full(2, 1.0))[4] for _ in range(800)])
        assert all(stats.kstest(column, "uniform").pvalue > CHANCE for column in draws.T)

    @pytest.mark.parametrize("g", [0.02, 0.5, 3.0])
    def test_shifted_factors_are_means_over_shifts(self, g: float) -> None:
        u = (np.arange(100_000) + 0.5) / 100_000
        for k in range(7):
            v, w = special.ndtri(u), special.ndtri((u + k / 7) % 1)
            for ours, sign in zip(shifted_factors(g, 7), (-1, 1), strict=True):
                assert ours[k] == pytest.approx(np.mean(np.exp(-g * (v + sign * w) ** 2 / 2)), abs=0.01)

    @pytest.mark.parametrize(("g", "bits"), [(0.02, 3), (0.5, 3), (3.0, 3), (0.5, 1), (0.5, 9)])
    def test_dyadic_factors_are_means_over_points_that_share_bits(self, g: float, bits: int) -> None:
        rng = np.random.default_rng(0)
        for k in {0, 1, bits - 1, bits}:
            prefix, bit, tails = rng.integers(0, 2**k, 200_000), rng.integers(0, 2, 200_000), rng.random((2, 200_000))
            if k < bits:  # the next bit differs, and what follows is free
                tails = (np.stack([bit, 1 - bit]) + tails) / 2
            v, w = special.ndtri((prefix + tails) / 2**k)
            for ours, sign in zip(dyadic_factors(g, bits), (-1, 1), strict=True):
                assert ours[k] == pytest.approx(np.mean(np.exp(-g * (v + sign * w) ** 2 / 2)), abs=0.012)

    def test_coordinates_without_variance_do_not_matter(self) -> None:
        for plain, mirrored in (shifted_factors(0.0, 50), dyadic_factors(0.0, 6)):
            assert np.all(plain == 1)
            assert np.all(mirrored == 1)

    def test_the_criterion_is_the_mean_squared_error(self) -> None:
        """For any two frequencies: E cos(v'gap) cos(w'gap) over normal gaps is half the sum of the two products."""
        rng = np.random.default_rng(0)
        g, (v, w) = np.array([0.3, 1.2]), rng.standard_normal((2, 2))
        gaps = rng.standard_normal((400_000, 2)) * np.sqrt(g)
        products = [np.exp(-(g * (v + sign * w) ** 2).sum() / 2) for sign in (-1, 1)]
        assert np.mean(np.cos(gaps @ v) * np.cos(gaps @ w)) == pytest.approx(np.mean(products), abs=5e-3)

    @pytest.mark.parametrize("make", [lattice_points, net_points])
    def test_chosen_generators_beat_random_ones(self, make: object, monkeypatch: pytest.MonkeyPatch) -> None:
        """The empirical second moments, which decide the error in many columns, are nearer to the identity."""

        def off_identity() -> float:
            draws = (special.ndtri(make(np.random.default_rng(s), 100, self.SPREAD)) for s in range(20))
            return float(np.mean([np.linalg.norm(W.T @ W / 100 - np.eye(7)) for W in draws]))

        chosen = off_identity()
        monkeypatch.setattr(quasi, "CANDIDATES", 1)
        assert chosen < 0.75 * off_identity()

    def test_principal_axes_get_the_first_coordinates(self) -> None:
        """On data that varies along one oblique line, points even along it beat points even along the columns."""
        rng = np.random.default_rng(0)
        X = rng.standard_normal((300, 1)) * np.ones(8) + 0.05 * rng.standard_normal((300, 8))
        kernel = make_kernel("gaussian", length_scale=3.0)
        K = exact(kernel, X[:60])
        for kind in ("halton", "sobol", "lattice", "digital-net"):
            blind, seeing = (
                np.mean(
                    [np.abs(approximation(draw(kind, kernel, 40, 8, s, sample=given), X[:60]) - K) for s in range(5)]
                )
                for given in (None, X)
            )
            assert seeing < 0.5 * blind


class TestMoments:
    @pytest.mark.parametrize(("F", "d"), [(6, 5), (40, 5), (300, 20)])
    def test_gaussian_mean_and_covariance_are_exact(self, F: int, d: int) -> None:
        W = draw("moment-matched", make_kernel("gaussian", length_scale=2.0), F, d, 1).dense()
        np.testing.assert_allclose(W.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(W.T @ W / F, np.eye(d) / 4, atol=1e-10)

    @pytest.mark.parametrize(("F", "d"), [(1, 5), (4, 5), (5, 5), (20, 30)])
    def test_few_frequencies_are_orthogonal_with_the_right_mean_square(self, F: int, d: int) -> None:
        W = draw("moment-matched", make_kernel("gaussian", length_scale=2.0), F, d, 1).dense()
        np.testing.assert_allclose(W @ W.T, np.diag((W**2).sum(axis=1)), atol=1e-8)
        assert np.mean((W**2).sum(axis=1)) == pytest.approx(d / 4)

    @pytest.mark.parametrize("kernel", ["cauchy", "matern32"])
    def test_heavy_tails_keep_norms_and_even_out_directions(self, kernel: str) -> None:
        plain, matched = (draw(k, make_kernel(kernel), 60, 5, 1).dense() for k in ("mc", "moment-matched"))
        norms = np.linalg.norm(matched, axis=1)
        np.testing.assert_allclose(norms, np.linalg.norm(plain, axis=1))
        directions = matched / norms[:, None]
        np.testing.assert_allclose(directions.T @ directions / 60, np.eye(5) / 5, atol=2e-3)


class TestWeights:
    @given(st.integers(1, 12), st.integers(0, 1000))
    @settings(max_examples=60, deadline=None)
    def test_nonnegative_solution_is_scipys(self, size: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        M, y = rng.standard_normal((size + 3, size)), rng.standard_normal(size + 3)
        expected, _ = optimize.nnls(M, y)
        np.testing.assert_allclose(nonnegative_solution(M.T @ M, M.T @ y), expected, atol=1e-8)

    def test_normal_equations_are_those_of_all_pairs(self) -> None:
        rng = np.random.default_rng(0)
        X, W = rng.standard_normal((9, 3)), rng.standard_normal((4, 3))
        gaps = (X[:, None] - X[None]).reshape(-1, 3)
        M, y = np.cos(gaps @ W.T), GAUSSIAN(X).ravel()
        A, b = normal_equations(X, W, GAUSSIAN)
        np.testing.assert_allclose(A, M.T @ M / 81, atol=1e-12)
        np.testing.assert_allclose(b, M.T @ y / 81, atol=1e-12)

    def test_fresh_rows_are_closer_than_with_uniform_weights(self) -> None:
        sample, fresh, _ = rows()
        kernel = make_kernel("gaussian", length_scale=3.0)
        K = exact(kernel, fresh)
        for seed in range(5):
            fitted, plain = (draw(k, kernel, 60, COLUMNS, seed, sample=sample) for k in ("weighted", "orthogonal"))
            assert np.array_equal(fitted.dense(), plain.dense())
            errors = [np.sqrt(np.mean((approximation(f, fresh) - K) ** 2)) for f in (fitted, plain)]
            assert errors[0] < 0.9 * errors[1]


class TestAlignment:
    @given(st.lists(st.floats(-3, 3), min_size=1, max_size=8))
    def test_onto_simplex_is_the_nearest_point(self, values: list[float]) -> None:
        z = np.array(values)
        p = onto_simplex(z)
        assert np.all(p >= 0)
        assert p.sum() == pytest.approx(1)
        for vertex in np.eye(len(z)):  # no vertex lies beyond the plane through p at right angles to z - p
            assert (z - p) @ (vertex - p) < 1e-9

    @pytest.mark.parametrize("radius", [0.1, 1.0, 3.0])
    def test_best_weights_are_those_of_a_general_solver(self, radius: float) -> None:
        v = np.random.default_rng(4).exponential(size=7)
        q = best_weights(v, radius)
        ball = {"type": "ineq", "fun": lambda q: radius - np.mean((7 * q - 1) ** 2)}
        simplex = {"type": "eq", "fun": lambda q: q.sum() - 1}
        found = optimize.minimize(
            lambda q: -q @ v, np.full(7, 1 / 7), bounds=[(0, 1)] * 7, constraints=[ball, simplex], method="SLSQP"
        )
        assert q @ v == pytest.approx(-found.fun, rel=1e-5)
        assert np.mean((7 * q - 1) ** 2) <= radius + 1e-9

    def test_best_weights_of_equal_values_are_uniform(self) -> None:
        assert np.array_equal(best_weights(np.ones(4), 1.0), np.full(4, 0.25))

    @given(st.integers(1, 10), st.integers(0, 500))
    @settings(deadline=None)
    def test_inclusion_probabilities(self, F: int, seed: int) -> None:
        q = np.random.default_rng(seed).exponential(size=12) ** 3
        pi = inclusion(q / q.sum(), F)
        assert pi.sum() == pytest.approx(F)
        assert np.all(pi <= 1 + 1e-12)
        below = pi < 1
        np.testing.assert_allclose(pi[below] / q[below], (pi[below] / q[below])[:1].repeat(below.sum()))

    def test_systematic_sampling_keeps_its_probabilities(self) -> None:
        pi = inclusion(np.array([0.5, 0.1, 0.1, 0.2, 0.1]), 3)
        rng = np.random.default_rng(0)
        taken = np.stack([systematic(rng, pi, 3) for _ in range(4000)])
        assert np.all(np.diff(taken, axis=1) > 0)
        np.testing.assert_allclose(np.bincount(taken.ravel(), minlength=5) / 4000, pi, atol=0.03)

    @pytest.mark.parametrize("name", ALL)
    def test_alignment_is_above_that_of_independent_draws_on_fresh_rows(self, name: str) -> None:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((900, COLUMNS))
        y = np.where(X[:, 0] * X[:, 1] > 0, 1.0, -1.0)
        kernel = make_kernel(name, length_scale=4.0)
        for seed in range(3):
            scores = [
                drawn.weights @ alignments(X[600:], y[600:, None], drawn.dense())
                for drawn in (
                    draw(k, kernel, 50, COLUMNS, seed, sample=X[:600], targets=y[:600]) for k in ("aligned", "mc")
                )
            ]
            assert scores[0] > 1.3 * scores[1]

    def test_frequencies_are_different_and_carry_weight(self) -> None:
        sample, _, targets = rows()
        drawn = draw("aligned", GAUSSIAN, 50, COLUMNS, 0, sample=sample, targets=targets)
        assert len(np.unique(drawn.dense(), axis=0)) == 50
        assert np.all(drawn.weights > 0)

    def test_alignments_are_sums_over_pairs(self) -> None:
        rng = np.random.default_rng(0)
        X, T, W = rng.standard_normal((8, 3)), rng.standard_normal((8, 2)), rng.standard_normal((5, 3))
        gaps = X[:, None] - X[None]
        expected = [(np.cos(gaps @ w) * (T @ T.T)).sum() / 64 for w in W]
        np.testing.assert_allclose(alignments(X, T, W), expected, atol=1e-12)

    def test_classes_by_name_are_one_column_each(self) -> None:
        names = np.array(["a", "b", "a", "c"])
        one_hot = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]], float)
        np.testing.assert_array_equal(target_columns(names), one_hot - one_hot.mean(axis=0))
        sample, _, targets = rows()
        named, numbered = (
            draw("aligned", GAUSSIAN, 9, COLUMNS, 0, sample=sample, targets=t)
            for t in (np.where(targets > 0, "yes", "no"), np.stack([targets < 0, targets > 0], axis=1).astype(float))
        )
        assert np.array_equal(named.dense(), numbered.dense())


class TestDamage:
    def structured(self) -> dict[str, np.ndarray]:
        return draw("fastfood", GAUSSIAN, 20, 5, 1).arrays()

    @pytest.mark.parametrize("name", ["weights", "columns", "diagonals", "permutations", "scale"])
    def test_missing_arrays(self, name: str) -> None:
        arrays = self.structured()
        del arrays[name]
        with pytest.raises(FileFormatError, match="damaged"):
            Frequencies.from_arrays("fastfood", arrays)

    def test_arrays_that_would_read_out_of_bounds(self) -> None:
        for name, change in {
            "permutations": lambda a: a + 1,
            "scale": lambda a: np.concatenate([a, a]),
            "columns": lambda a: a + 100,
            "diagonals": lambda a: a[:, :, :7],
        }.items():
            arrays = self.structured()
            arrays[name] = change(arrays[name])
            with pytest.raises(FileFormatError, match="damaged"):
                Frequencies.from_arrays("fastfood", arrays)

    def test_dense_arrays_that_do_not_fit(self) -> None:
        with pytest.raises(FileFormatError, match="3 of them and weights"):
            Frequencies.from_arrays("mc", {"W": np.zeros((3, 2)), "weights": np.ones(4)})
