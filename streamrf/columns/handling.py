"""What a user asks for: how categories and missing values are to be handled."""

from __future__ import annotations

from dataclasses import dataclass

from streamrf.columns.document import MAX_LEVELS
from streamrf.errors import InputError

CATEGORIES = ("auto", "onehot", "ordinal", "error")
MISSING = ("error", "median")
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
