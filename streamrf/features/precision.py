"""The precisions features are held in, and what each means for the types around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamrf.support.errors import InputError

LIMITS = {7: 63, 8: 127, 12: 2047, 20: 2**19 - 1}  # bits of a feature, and the largest integer that stands for it
_INT64 = 2**63 - 1


@dataclass(frozen=True)
class Precision:
    """``7``, ``8``, ``12`` and ``20``: features rounded to integers, all sums exact. ``float32``, ``float64``: not
    rounded."""

    name: str

    @property
    def exact(self) -> bool:
        return self.name.isdigit()

    @property
    def key(self) -> int | str:
        """What products are chosen by: 7, 8, 12, 20, 'float32' or 'float64'."""
        return int(self.name) if self.exact else self.name

    @property
    def scale(self) -> int:
        """The feature that stands for a cosine of one."""
        return LIMITS[int(self.name)] if self.exact else 1

    @property
    def inputs(self) -> np.dtype:
        """Type in which inputs are projected."""
        return np.dtype(np.float64 if self.name in ("20", "float64") else np.float32)

    @property
    def features(self) -> np.dtype:
        """The narrowest type that holds a feature."""
        return np.min_scalar_type(-self.scale) if self.exact else self.inputs

    @property
    def most_rows(self) -> int:
        """Whose products of two features have a sum that the totals can hold."""
        return _INT64 // self.scale**2 if self.exact else _INT64

    @property
    def totals(self) -> np.dtype:
        """Type of the sums."""
        return np.dtype(np.int64 if self.exact else np.float64)


PRECISIONS = ("7", "8", "12", "20", "float32", "float64")


def make_precision(name: str | int) -> Precision:
    """The precision of that name; anything else is refused with the list of names."""
    if str(name) not in PRECISIONS:
        raise InputError(f"`bits={str(name)!r}`: choose one of {', '.join(PRECISIONS)} (or auto)")
    return Precision(str(name))
