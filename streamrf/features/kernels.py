"""Shift-invariant kernels: the exact k(x, y), and the spectral measure that random Fourier features draw from.

Every kernel has one length scale, and ``gamma`` is scikit-learn's name for the same width where scikit-learn has the
kernel. ``docs/decisions/kernel-widths.md`` gives the formulas.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import numpy as np
import scipy

from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.storage.safejson import JSON

LARGEST_NU = 10_000.0  # beyond it a Matern kernel is the Gaussian to four digits, and its Bessel function loses digits
_DEBYE_FROM = 50.0  # from this order on, the Bessel function overflows long before its logarithm does
_LARGEST_RATIO = 1e12  # heavier draws than this are the same noise; it keeps every frequency finite in float32


_CLASSES: dict[str, type[Kernel]] = {}  # by the name that files have
_ALIASES = {"rbf": "gaussian"}
KERNELS: dict[str, Callable[[], Kernel]] = {}
"""The names of ``make_kernel``, of every kernel that is defined; ``matern:NU`` is one too, for any NU > 0."""


def _open(U: np.ndarray) -> np.ndarray:
    """Uniforms pushed off 0 and 1, where inverse distribution functions are infinite."""
    return np.clip(np.asarray(U, dtype=np.float64), 2.0**-54, 1.0 - 2.0**-53)


def _positive(name: str, value: float) -> float:
    value = float(value)
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive finite number, not {value}")
    if not 1e-100 < value < 1e100:  # its square must be a number too
        raise InputError(f"{name} must be between 1e-100 and 1e100, not {value}")
    return value


@dataclass(frozen=True)
class Kernel(ABC):
    """A kernel of one width. Its frequencies may differ in the last bit between machines: draw once and keep them."""

    length_scale: float = 1.0

    name: ClassVar[str]
    radial: ClassVar[bool]  # a function of the Euclidean norm of x - y alone
    product: ClassVar[bool]  # a product over coordinates
    variants: ClassVar[dict[str, dict[str, float]]]  # names that set further fields, if it has such names
    gamma_power: ClassVar[int] = 1  # gamma is gamma_of_one / length_scale^gamma_power
    gamma_of_one: ClassVar[float] = 1.0

    def __init_subclass__(cls) -> None:
        """Defining a subclass with a ``name`` is all it takes for recipes, commands and model files to know it."""
        super().__init_subclass__()
        if name := vars(cls).get("name"):
            if name in _CLASSES and _CLASSES[name].__qualname__ != cls.__qualname__:
                raise InputError(f"there is a kernel {name!r} already: choose another name")
            _CLASSES[name] = cls
            for variant, settings in vars(cls).get("variants", {name: {}}).items():
                KERNELS[variant] = partial(cls, **settings)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length_scale", _positive("length_scale", self.length_scale))

    # -- the kernel itself

    def __call__(self, X: np.ndarray, Y: np.ndarray | None = None) -> np.ndarray:
        """The exact kernel between the rows of X and those of Y (of X itself if there is no Y)."""
        X = self._scaled(X)
        Y = X if Y is None else self._scaled(Y)
        if X.shape[1] != Y.shape[1]:
            raise InputError(f"the kernel needs rows of one width: X has {X.shape[1]} columns and Y has {Y.shape[1]}")
        return self._between(X, Y)

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2:
            raise InputError(f"the kernel needs two-dimensional arrays of rows, not {X.ndim}-dimensional ones")
        return X / self.length_scale

    @abstractmethod
    def _between(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """The kernel at length scale 1, (n, m)."""

    @abstractmethod
    def _of_gaps(self, gaps: np.ndarray) -> np.ndarray:
        """The kernel at length scale 1 of each row of differences x - y."""

    def _reduced(self, gaps: np.ndarray) -> np.ndarray:
        """Differences with as few columns as keep the kernel's value at every length scale."""
        return gaps

    # -- the spectral measure

    def uniforms(self, d: int) -> int:
        """How many uniforms in (0, 1) one frequency of d coordinates needs."""
        return d

    def frequencies(self, U: np.ndarray, d: int) -> np.ndarray:
        """Frequencies (F, d) by inverse distribution functions: uniform U gives draws of the spectral measure."""
        U = np.asarray(U, dtype=np.float64)
        if U.ndim != 2 or U.shape[1] != self.uniforms(d):
            raise InputError(f"{self.label} needs {self.uniforms(d)} uniforms for {d} columns; got shape {U.shape}")
        return self._unit_frequencies(_open(U), d) / self.length_scale

    @abstractmethod
    def _unit_frequencies(self, U: np.ndarray, d: int) -> np.ndarray: ...

    def sample(self, rng: np.random.Generator, F: int, d: int) -> np.ndarray:
        """F independent draws of the spectral measure, (F, d)."""
        return self.frequencies(rng.random((F, self.uniforms(d))), d)

    def radii(self, U: np.ndarray, d: int) -> np.ndarray:
        """Norms of frequencies by the inverse of their distribution function; their directions are uniform."""
        return self._unit_radii(_open(U), d) / self.length_scale

    def _unit_radii(self, U: np.ndarray, d: int) -> np.ndarray:
        raise InputError(
            f"the frequencies of the {self.label} kernel have no uniform direction, as it is not a function of the "
            "Euclidean norm: use independent or quasi-random frequencies, or a Gaussian or Matern kernel"
        )

    def bin_widths(self, U: np.ndarray) -> np.ndarray:
        """Widths of random grids whose bins collide with probability k, by inverse distribution function."""
        why = "its second derivative is negative near 0" if self.product else "it is not a product over columns"
        raise InputError(
            f"the {self.label} kernel cannot be drawn by random binning, because {why}: use the laplacian kernel, "
            "or a Fourier map"
        )

    @abstractmethod
    def second_moment(self, d: int) -> float:
        """E[w'w] of the spectral measure; infinite where it does not exist."""

    # -- names and widths

    @property
    def label(self) -> str:
        """The name that ``make_kernel`` accepts."""
        return self.name

    @property
    def gamma(self) -> float:
        """The width as scikit-learn's gamma."""
        return self.gamma_of_one / self.length_scale**self.gamma_power

    @classmethod
    def scale_of_gamma(cls, gamma: float) -> float:
        """The length scale that a gamma means for this kernel."""
        power = cls.gamma_of_one / gamma
        return math.sqrt(power) if cls.gamma_power == 2 else power

    def with_length_scale(self, length_scale: float) -> Self:
        """The same kernel at another width."""
        return replace(self, length_scale=length_scale)

    def spec(self) -> JSON:
        """JSON from which ``kernel_from_spec`` makes an equal kernel."""
        return {"name": self.name, "length_scale": self.length_scale}


@dataclass(frozen=True)
class NormKernel(Kernel):
    """A kernel that is a profile of one norm of x - y."""

    order: ClassVar[int]  # 1 or 2: which norm

    @abstractmethod
    def profile(self, r: np.ndarray) -> np.ndarray:
        """The kernel at length scale 1 of two points at distance r."""

    def _between(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        from scipy.spatial.distance import cdist  # slow to import, and only exact kernels need it

        return self.profile(cdist(X, Y, "cityblock" if self.order == 1 else "euclidean"))

    def _of_gaps(self, gaps: np.ndarray) -> np.ndarray:
        return self.profile(np.linalg.norm(gaps, ord=self.order, axis=1))

    def _reduced(self, gaps: np.ndarray) -> np.ndarray:
        return np.linalg.norm(gaps, ord=self.order, axis=1, keepdims=True)


@dataclass(frozen=True)
class Gaussian(NormKernel):
    """exp(-|x - y|^2 / (2 l^2)); frequencies are normal."""

    name, radial, product, order = "gaussian", True, True, 2
    gamma_power, gamma_of_one = 2, 0.5

    def profile(self, r: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * r * r)

    def _unit_frequencies(self, U: np.ndarray, d: int) -> np.ndarray:
        return scipy.special.ndtri(U)

    def _unit_radii(self, U: np.ndarray, d: int) -> np.ndarray:
        return np.sqrt(2.0 * scipy.special.gammaincinv(d / 2, U))

    def second_moment(self, d: int) -> float:
        return d / self.length_scale**2


@dataclass(frozen=True)
class Laplacian(NormKernel):
    """exp(-|x - y|_1 / l), a product over columns; frequencies are Cauchy in each column."""

    name, radial, product, order = "laplacian", False, True, 1

    def profile(self, r: np.ndarray) -> np.ndarray:
        return np.exp(-r)

    def _unit_frequencies(self, U: np.ndarray, d: int) -> np.ndarray:
        return np.clip(-1.0 / np.tan(np.pi * U), -_LARGEST_RATIO, _LARGEST_RATIO)

    def bin_widths(self, U: np.ndarray) -> np.ndarray:
        """Gamma(2, length_scale): the density delta k''(delta)."""
        return self.length_scale * scipy.special.gammaincinv(2.0, _open(U))

    def second_moment(self, d: int) -> float:
        return math.inf


@dataclass(frozen=True)
class Cauchy(Kernel):
    """The product over columns of 1 / (1 + (x - y)^2 / l^2); frequencies are Laplace in each column."""

    name, radial, product = "cauchy", False, True
    gamma_power = 2

    def _between(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        inverse = np.ones((len(X), len(Y)))
        for x, y in zip(X.T, Y.T, strict=True):
            inverse *= 1.0 + (x[:, None] - y) ** 2
        return 1.0 / inverse

    def _of_gaps(self, gaps: np.ndarray) -> np.ndarray:
        return np.exp(-np.log1p(gaps * gaps).sum(axis=1))

    def _unit_frequencies(self, U: np.ndarray, d: int) -> np.ndarray:
        return np.where(U < 0.5, np.log(2.0 * U), -np.log(2.0 * (1.0 - U)))

    def second_moment(self, d: int) -> float:
        return 2.0 * d / self.length_scale**2


@dataclass(frozen=True)
class Matern(NormKernel):
    """The Matern kernel of smoothness nu as scikit-learn has it; frequencies are multivariate t of 2 nu degrees."""

    nu: float = 1.5

    name, radial, product, order = "matern", True, False, 2
    variants: ClassVar[dict[str, dict[str, float]]] = {
        "matern12": {"nu": 0.5}, "matern32": {"nu": 1.5}, "matern52": {"nu": 2.5},
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "nu", _positive("nu", self.nu))
        if self.nu > LARGEST_NU:
            raise InputError(f"nu = {self.nu:g} is above {LARGEST_NU:g}: use the gaussian kernel, which is its limit")

    def profile(self, r: np.ndarray) -> np.ndarray:
        s = math.sqrt(2.0 * self.nu) * r
        closed_forms = {0.5: lambda: 1.0, 1.5: lambda: 1.0 + s, 2.5: lambda: 1.0 + s + s * s / 3.0}
        if self.nu in closed_forms:
            return closed_forms[self.nu]() * np.exp(-s)
        return _matern_profile(self.nu, s)

    def uniforms(self, d: int) -> int:
        """One per column for a normal, and one for the chi-square that it is divided by."""
        return d + 1

    def _unit_frequencies(self, U: np.ndarray, d: int) -> np.ndarray:
        with np.errstate(divide="ignore", over="ignore"):
            ratio = np.sqrt(self.nu / scipy.special.gammaincinv(self.nu, U[:, d:]))
        return scipy.special.ndtri(U[:, :d]) * np.minimum(ratio, _LARGEST_RATIO)

    def _unit_radii(self, U: np.ndarray, d: int) -> np.ndarray:
        """|w|^2 / (2 nu) is beta prime: the share of each chi-square is beta, and both tails are kept accurate."""
        normal, mixing = scipy.special.betaincinv(d / 2, self.nu, U), scipy.special.betainccinv(self.nu, d / 2, U)
        with np.errstate(divide="ignore", over="ignore"):
            return np.minimum(np.sqrt(2.0 * self.nu * normal / mixing), _LARGEST_RATIO)

    def second_moment(self, d: int) -> float:
        return d * self.nu / (self.nu - 1.0) / self.length_scale**2 if self.nu > 1.0 else math.inf

    @property
    def label(self) -> str:
        named = (name for name, settings in self.variants.items() if settings["nu"] == self.nu)
        return next(named, f"matern:{self.nu!r}")

    def spec(self) -> JSON:
        return super().spec() | {"nu": self.nu}


def _matern_profile(nu: float, s: np.ndarray) -> np.ndarray:
    """2^(1 - nu) / Gamma(nu) s^nu K_nu(s), by its logarithm; 1 - s^2 / (4 (nu - 1)) where K_nu itself overflows."""
    s = np.minimum(s, 1e6)  # the kernel is 0 long before, and the Bessel function is not computed long after
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_bessel = _log_bessel_debye(nu, s) if nu > _DEBYE_FROM else np.log(scipy.special.kve(nu, s)) - s
        k = np.exp((1.0 - nu) * math.log(2.0) - scipy.special.gammaln(nu) + nu * np.log(s) + log_bessel)
    near = 1.0 - s * s / (4.0 * (nu - 1.0)) if nu > 2.0 else np.ones_like(s)
    return np.clip(np.where(np.isposinf(log_bessel) | (s == 0.0), near, k), 0.0, 1.0)


def _log_bessel_debye(nu: float, s: np.ndarray) -> np.ndarray:
    """log K_nu(s) by Debye's expansion, which is uniform in s; its error is below 1e-8 for nu > 50."""
    z = s / nu
    root = np.sqrt(1.0 + z * z)
    p = 1.0 / root
    u1 = (3 * p - 5 * p**3) / 24
    u2 = (81 * p**2 - 462 * p**4 + 385 * p**6) / 1152
    u3 = (30375 * p**3 - 369603 * p**5 + 765765 * p**7 - 425425 * p**9) / 414720
    series = 1.0 - u1 / nu + u2 / nu**2 - u3 / nu**3
    eta = root + np.log(z / (1.0 + root))
    return 0.5 * math.log(math.pi / (2.0 * nu)) - nu * eta - 0.5 * np.log(root) + np.log(series)


def _named(name: str) -> Kernel:
    """The kernel of this name at length scale 1."""
    name = _ALIASES.get(name.lower(), name.lower())
    if name in KERNELS:
        return KERNELS[name]()
    family, _, nu_text = name.partition(":")
    if family == "matern" and nu_text:
        return Matern(nu=_number(name, nu_text))
    raise InputError(f"there is no kernel {name!r}: choose one of {', '.join(KERNELS)} or matern:NU")


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name!r} is not a kernel: NU of matern:NU must be a number, not {text!r}") from None


def make_kernel(name: str, *, length_scale: float | None = None, gamma: float | None = None) -> Kernel:
    """The kernel of a name and a width, given as a length scale or as scikit-learn's gamma (not both)."""
    if length_scale is not None and gamma is not None:
        raise InputError(f"give a length scale ({length_scale}) or gamma ({gamma}), not both: they set the same width")
    kernel = _named(name)
    if gamma is not None:
        length_scale = kernel.scale_of_gamma(_positive("gamma", gamma))
    return kernel if length_scale is None else kernel.with_length_scale(length_scale)


def kernel_from_spec(spec: JSON) -> Kernel:
    """The kernel that ``spec()`` described."""
    try:
        fields = dict(spec)
        return _CLASSES[str(fields.pop("name"))](**{key: float(str(value)) for key, value in fields.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{spec!r} does not describe a kernel: {error}") from error
