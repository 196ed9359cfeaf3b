"""What a run tells while it goes on. The library shows nothing: it logs, and the command line shows more."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamrf.solvers.plan import Plan
    from streamrf.training.pilot.fourier import Trial

log = logging.getLogger("streamrf")


class Reporter:
    """Told of everything; writes it to the logger ``streamrf`` and nowhere else. Subclasses show what they like."""

    wants_progress_error = False  # whether errors on hold-out rows are worth a hundredth of the pass

    def note(self, text: str) -> None:
        """One sentence about what was found or done."""
        log.info("%s", text)

    def planned(self, plan: Plan) -> None:
        log.info("plan: %s, %d bytes projected of a budget of %d", plan.solver, plan.projected, plan.budget)

    def tried(self, trial: Trial) -> None:
        log.debug("pilot: %s", trial)

    def started(self, what: str, rows: int, done: int) -> None:
        """A pass over so many rows begins, some of which may be done already."""
        log.info("%s: %d rows, %d of them done", what, rows, done)

    def advanced(self, done: int, checkpoint_age: float | None) -> None:
        """So many rows are done; the last save, if there is one, is so many seconds old."""

    def progress_error(self, error: float, what: str) -> None:
        """The error on hold-out rows that the sums so far would give."""
        log.info("hold-out %s so far: %g", what, error)

    def finished(self) -> None:
        log.debug("the pass is over")

    def settled(self, chosen: dict[str, Any]) -> None:
        log.info("settings: %s", chosen)
