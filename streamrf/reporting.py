"""What a run tells while it goes on. The library is silent; the command line shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamrf.pilot import Trial
    from streamrf.plan import Plan


class Reporter:
    """Told of everything, says nothing. Subclasses show what they like."""

    def note(self, text: str) -> None:
        """One sentence about what was found or done."""

    def planned(self, plan: Plan) -> None: ...

    def tried(self, trial: Trial) -> None: ...

    def started(self, what: str, rows: int, done: int) -> None:
        """A pass over so many rows begins, some of which may be done already."""

    def advanced(self, done: int, checkpoint_age: float | None) -> None: ...

    def finished(self) -> None: ...

    def settled(self, chosen: dict[str, Any]) -> None: ...
