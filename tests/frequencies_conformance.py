"""What every way of drawing frequencies must satisfy; each is held to it by a subclass of a few lines."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from streamrf.features.fourier import UNTOLD, Frequencies, Learning, draw
from streamrf.features.kernels import KERNELS, Kernel, make_kernel
from streamrf.support.errors import InputError

COLUMNS = 6
ALL = KERNELS
RADIAL = ("gaussian", "matern12", "matern32", "matern52")


@cache
def rows(n: int = 150) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gaussian rows split 2:1 into a sample to fit to and fresh rows to measure on, and targets of the sample."""
    X = np.random.default_rng(20).standard_normal((n, COLUMNS))
    sample, fresh = X[: 2 * n // 3], X[2 * n // 3 :][:30]
    return sample, fresh, np.where(sample[:, 0] * sample[:, 1] > 0, 1.0, -1.0)


def kernel_named(name: str) -> Kernel:
    return make_kernel(name, length_scale=8.0 if name == "laplacian" else 3.0)


def approximation(drawn: Frequencies, X: np.ndarray) -> np.ndarray:
    """The kernel between different rows as the definition has it: sum_j p_j cos(w_j'(x - y))."""
    first, second = np.triu_indices(len(X), 1)
    return np.cos((X[first] - X[second]) @ drawn.dense().T) @ drawn.weights


def exact(kernel: Kernel, X: np.ndarray) -> np.ndarray:
    """The same pairs of the kernel itself."""
    return kernel(X)[np.triu_indices(len(X), 1)]


class FrequencyConformance:
    kind: str
    kernels: tuple[str, ...] = ALL
    unbiased = True
    times_mc = 1.15  # the mean absolute error at most this many times that of mc, on average over seeds
    learning: Learning = UNTOLD
    shrinks = 0.36  # mean and largest error at 16 times the frequencies, as a share; 1/4 is the Monte Carlo rate

    def drawn(self, F: int, seed: int, kernel: str = "gaussian") -> Frequencies:
        sample, _, targets = rows()
        wanted = kernel_named(kernel)
        return draw(self.kind, wanted, F, COLUMNS, seed, sample=sample, targets=targets, learning=self.learning)

    def errors(self, F: int, seeds: int, kernel: str = "gaussian", kind: str | None = None) -> np.ndarray:
        """Errors of the kernel between fresh rows, (seeds, pairs)."""
        sample, fresh, targets = rows()
        wanted = kernel_named(kernel)
        K = exact(wanted, fresh)
        given = {"sample": sample, "targets": targets, "learning": self.learning}
        draws = (draw(kind or self.kind, wanted, F, COLUMNS, s, **given) for s in range(seeds))
        return np.stack([approximation(drawn, fresh) - K for drawn in draws])

    def test_shapes_and_types(self) -> None:
        drawn = self.drawn(37, 1)
        assert drawn.dense().shape == (37, COLUMNS)
        assert drawn.dense().dtype == np.float64
        assert drawn.weights.shape == (37,)
        assert np.all(drawn.weights >= 0)
        assert drawn.weights.sum() == pytest.approx(1, abs=0.2)
        assert (drawn.kind, drawn.d, len(drawn)) == (self.kind, COLUMNS, 37)

    @pytest.mark.parametrize(("F", "d"), [(1, 1), (2, 1), (7, 1), (1, 5), (3, 5), (5, 5), (6, 5), (64, 2), (100, 3)])
    def test_any_number_of_frequencies_and_columns(self, F: int, d: int) -> None:
        X = np.random.default_rng(0).standard_normal((30, d))
        given = {"sample": X, "targets": np.sin(X.sum(axis=1)), "learning": self.learning}
        drawn = draw(self.kind, make_kernel("gaussian"), F, d, 5, **given)
        assert drawn.dense().shape == (F, d)
        assert np.all(np.isfinite(drawn.dense()))
        assert np.all(np.isfinite(drawn.weights))

    def test_same_seed_same_bits_and_another_seed_others(self) -> None:
        first, again, other = self.drawn(40, 7), self.drawn(40, 7), self.drawn(40, 8)
        assert np.array_equal(first.dense(), again.dense())
        assert np.array_equal(first.weights, again.weights)
        assert not np.any(np.all(first.dense() == other.dense(), axis=1))

    def test_arrays_give_it_back(self) -> None:
        drawn = self.drawn(40, 7)
        back = Frequencies.from_arrays(self.kind, drawn.arrays())
        assert np.array_equal(back.dense(), drawn.dense())
        assert np.array_equal(back.weights, drawn.weights)
        assert (back.kind, back.d) == (drawn.kind, drawn.d)

    def test_width_scales_frequencies(self) -> None:
        """Twice the length scale is half the frequencies, up to what a fit to data or a rotation changes."""
        X = np.zeros((2, COLUMNS))
        narrow, wide = (
            draw(self.kind, make_kernel("gaussian", length_scale=scale), 40, COLUMNS, 3, sample=X, targets=X[:, 0])
            for scale in (1.0, 2.0)
        )
        np.testing.assert_allclose(np.linalg.norm(narrow.dense(), axis=1), 2 * np.linalg.norm(wide.dense(), axis=1))

    def test_error_shrinks_at_its_rate(self) -> None:
        few, many = self.errors(24, 10), self.errors(24 * 16, 10)
        assert np.abs(many).mean() < self.shrinks * np.abs(few).mean()
        assert np.abs(many).max(axis=1).mean() < self.shrinks * np.abs(few).max(axis=1).mean()

    def test_unbiased(self) -> None:
        """Over seeds a pair's mean error is of the size of its standard error; or at least well below single errors."""
        if self.unbiased:
            errors = self.errors(8, 250)
            ratios = errors.mean(axis=0) / (errors.std(axis=0, ddof=1) / np.sqrt(len(errors)))
            assert np.mean(ratios**2) < 2.0
        else:
            errors = self.errors(32, 60)
            assert np.abs(errors.mean(axis=0)).mean() < 0.6 * np.abs(errors).mean()

    def test_against_independent_draws(self) -> None:
        ours, theirs = np.abs(self.errors(64, 16)).mean(), np.abs(self.errors(64, 16, kind="mc")).mean()
        assert ours < self.times_mc * theirs

    @pytest.mark.parametrize("kernel", ALL)
    def test_each_kernel_it_is_defined_for(self, kernel: str) -> None:
        if kernel in self.kernels:
            errors = np.abs(self.errors(256, 4, kernel))
            assert errors.mean() < 0.06
            assert errors.max() < 0.35
        else:
            with pytest.raises(InputError, match=rf"{self.kind} frequencies need .* the {kernel}\b.*: use "):
                self.drawn(10, 0, kernel)
