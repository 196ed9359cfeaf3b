"""Statistics that add and subtract: update a model with new shards, forget old ones, merge what was summed apart.

::

    from streamrf.algebra import Statistics

    window = Statistics.load("week.model") + Statistics.load("monday.stats") - Statistics.load("last-monday.stats")
    window.solve().save("window.model", state=window.state)
"""

from streamrf.algebra.changes import Work, accumulate, combine, forget, prepare, update
from streamrf.algebra.statistics import Statistics, load_prepared, save_prepared

__all__ = [
    "Statistics",
    "Work",
    "accumulate",
    "combine",
    "forget",
    "load_prepared",
    "prepare",
    "save_prepared",
    "update",
]
