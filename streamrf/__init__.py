"""streamrf: out-of-core kernel machines with random features.

Everything in ``__all__`` is the public interface; it is loaded when it is first asked for, so ``import streamrf`` is
quick. ``docs/python.md`` shows how it is used.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from streamrf.support import __version__

logging.getLogger("streamrf").addHandler(logging.NullHandler())

_HOMES = {
    "streamrf.api": ("evaluate", "importance", "plan", "predict", "train"),
    "streamrf.api.estimators": ("KernelClassifier", "KernelRegressor", "load"),
    "streamrf.api.random_features": ("RandomFeatures",),
    "streamrf.data.source": ("Source",),
    "streamrf.data.open": ("open_source",),
    "streamrf.recipe": ("Recipe",),
    "streamrf.training.run": ("Settings", "Trained"),
    "streamrf.support.progress": ("Reporter",),
    "streamrf.models.model": ("Model",),
    "streamrf.training.update.changes": ("accumulate", "forget", "prepare", "update"),
    "streamrf.training.update.statistics": ("Statistics",),
    "streamrf.support.errors": ("StreamRFError",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 (by what they are for)
    "KernelClassifier", "KernelRegressor", "RandomFeatures",
    "open_source", "plan", "train", "predict", "evaluate", "importance", "load",
    "Model", "Recipe", "Settings", "Source", "Trained", "Reporter",
    "Statistics", "prepare", "accumulate", "update", "forget",
    "StreamRFError", "__version__",
]  # fmt: skip

if TYPE_CHECKING:
    from streamrf.api import evaluate, importance, plan, predict, train
    from streamrf.api.estimators import KernelClassifier, KernelRegressor, load
    from streamrf.api.random_features import RandomFeatures
    from streamrf.data.open import open_source
    from streamrf.data.source import Source
    from streamrf.models.model import Model
    from streamrf.recipe import Recipe
    from streamrf.support.errors import StreamRFError
    from streamrf.support.progress import Reporter
    from streamrf.training.run import Settings, Trained
    from streamrf.training.update.changes import accumulate, forget, prepare, update
    from streamrf.training.update.statistics import Statistics


def __getattr__(name: str) -> Any:
    """A public name, from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module 'streamrf' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
