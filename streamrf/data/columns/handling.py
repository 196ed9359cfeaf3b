"""What a user asks for: how categories and missing values are to be handled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from streamrf.support.errors import FileFormatError, InputError

CATEGORIES = ("auto", "onehot", "ordinal", "error")
MISSING = ("error", "median")
MAX_LEVELS = 10_000
ONEHOT_LEVELS = 100  # each level is an input more


@dataclass(frozen=True)
class Handling:
    """``auto`` is one-hot. ``categorical`` names columns of numbers that are categories all the same."""

    categories: str = "auto"
    missing: str = "error"
    max_levels: int | None = None
    categorical: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.categories not in CATEGORIES:
            raise InputError(f"--categories {self.categories}: choose one of {', '.join(CATEGORIES)}")
        if self.missing not in MISSING:
            raise InputError(f"--missing {self.missing}: choose one of {', '.join(MISSING)}")
        if self.max_levels is not None and not 1 <= self.max_levels <= MAX_LEVELS:
            raise InputError(f"--max-levels {self.max_levels}: a number from 1 to {MAX_LEVELS:,} is wanted")

    @property
    def style(self) -> str:
        """The kind of coding that a category gets."""
        return "ordinal" if self.categories == "ordinal" else "onehot"

    @property
    def limit(self) -> int:
        """Levels that a category may have."""
        if self.max_levels is not None:
            return self.max_levels
        return MAX_LEVELS if self.categories == "ordinal" else ONEHOT_LEVELS

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "categorical": list(self.categorical)}

    @classmethod
    def from_json(cls, document: Any) -> Handling:
        """What ``to_json`` described; anything that cannot be that is a FileFormatError."""
        if not isinstance(document, Mapping) or set(document) - set(asdict(cls())):
            raise FileFormatError(f"damaged coding of columns: {str(document)[:80]} does not say how it was asked for")
        levels, names = document.get("max_levels"), document.get("categorical", [])
        listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not listed or not (levels is None or type(levels) is int):
            raise FileFormatError(f"damaged coding of columns: {str(document)[:80]} cannot have been asked for")
        try:
            return cls(**{**document, "categorical": tuple(names)})
        except InputError as error:
            raise FileFormatError(f"damaged coding of columns: {error}") from None
