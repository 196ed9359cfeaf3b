"""Which sums are waiting on which worker."""

from __future__ import annotations

from collections.abc import Iterator

from streamrf.engines.cluster.foreman import Part


class Holdings:
    """Parts by the worker that holds them: with a thousand workers, none may cost a look at all the others."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Part]] = {}  # no empty lists

    def __iter__(self) -> Iterator[Part]:
        return (part for parts in self._parts.values() for part in parts)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def of(self, home: str) -> list[Part]:
        return self._parts.get(home, [])

    def add(self, part: Part) -> None:
        self._parts.setdefault(part.home, []).append(part)

    def remove(self, part: Part) -> None:
        """Take a part out; one that is not in is left alone."""
        rest = [other for other in self.of(part.home) if other is not part]
        if rest:
            self._parts[part.home] = rest
        else:
            self._parts.pop(part.home, None)

    def move(self, part: Part, home: str) -> None:
        """A part went to another worker."""
        self.remove(part)
        part.home = home
        self.add(part)
