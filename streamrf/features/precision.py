"""The precisions features are held in, and what each means for the types around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamrf.support.errors import InputError

LIMITS = {7: 63, 8: 127, 12: 2047}  # bits of a feature, and the largest integer that stands for it


@dataclass(frozen=True)
class Precision:
    """``7``, ``8`` and ``12``: features rounded to integers, all sums exact. ``float32``, ``float64``: not rounded."""

    name: str

    @property
    def exact(self) -> bool:
        return self.name.isdigit()

    @property
    def key(self) -> int | str:
        """What products are chosen by: 7, 8, 12, 'float32' or 'float64'."""
        return int(self.name) if self.exact else self.name

    @property
    def scale(self) -> int:
        """The feature that stands for a cosine of one."""
        return LIMITS[int(self.name)] if self.exact else 1

    @property
    def inputs(self) -> np.dtype:
        """Type in which inputs are projected."""
        return np.dtype(np.float64 if self.name == "float64" else np.float32)

    @property
    def features(self) -> np.dtype:
        """The narrowest type that holds a feature."""
        return np.dtype(np.int8 if self.scale < 128 else np.int16) if self.exact else self.inputs

    @property
    def totals(self) -> np.dtype:
        """Type of the sums."""
        return np.dtype(np.int64 if self.exact else np.float64)


PRECISIONS = ("7", "8", "12", "float32", "float64")


def make_precision(name: str | int) -> Precision:
    """The precision of that name; anything else is refused with the list of names."""
    if str(name) not in PRECISIONS:
        raise InputError(f"`bits={str(name)!r}`: choose one of {', '.join(PRECISIONS)} (or auto)")
    return Precision(str(name))
