"""Settings that describe themselves: a dataclass field with its help text, its allowed values and its flag.

Validation, the options of the command line, the signature of the estimators and the reference pages derive from these
fields, so a setting is written down once. Messages and help texts name a setting as Python spells it, in backticks;
the command line turns that into flags.
"""

from __future__ import annotations

import ast
import csv
import io
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from math import inf
from numbers import Real
from typing import Any

from streamrf.support.errors import InputError

AUTO, NONE = "auto", "none"
_KEY = "setting"
_FLAGS: dict[str, str] = {}  # of the settings that the command line calls by another name; declaring one adds it
_QUOTED = re.compile(r"(?<!`)`([A-Za-z][A-Za-z0-9_]*)(?:=([^`]+))?`(?!`)")


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``; ``above`` and ``below`` leave out the one end or the other."""

    low: float
    high: float = inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        high_enough = value > self.low if self.above else value >= self.low
        return high_enough and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        if self.high == inf:
            return "a positive number" if self.above else "zero or a positive number"
        first, last = "above " if self.above else "from ", "below " if self.below else ""
        return f"{first}{self.low:,} to {last}{self.high:,}"


POSITIVE, NOT_NEGATIVE = Range(0, inf, above=True, below=True), Range(0, inf, below=True)


@dataclass(frozen=True)
class About:
    """What is known of a setting besides its name, type and default."""

    help: str
    flag: str | None = None  # on the command line, where it is not the name
    choices: Callable[[], Iterable[str]] | None = None  # asked late: maps and solvers may be added from outside
    some: Callable[[], Iterable[str]] | None = None  # of more values than can be listed, for a shell to complete
    within: Range | None = None
    metavar: str | None = None
    group: str = "model"

    def allowed(self, default: Any) -> tuple[str, ...]:
        """The values to choose from, ``auto`` first where that is the default."""
        if self.choices is None:
            return ()
        names = tuple(self.choices())
        return names if default != AUTO or AUTO in names else (AUTO, *names)


def setting(default: Any, help: str, **about: Any) -> Any:
    """A dataclass field that knows its help text, choices or range, flag and group."""
    return field(default=default, metadata={_KEY: About(help, **about)})


def about(setting: Field[Any]) -> About:
    """What a field was declared with."""
    known: About = setting.metadata[_KEY]
    return known


def flag_of(setting: Field[Any]) -> str:
    """What the command line calls it."""
    return f"--{about(setting).flag or setting.name.replace('_', '-')}"


def with_flags(text: str, own: Mapping[str, str] | None = None) -> str:
    """A text with its settings as flags of the command line: `` `nan='drop'` `` becomes ``--nan drop``.

    ``own`` has the flags of one command, by parameter; they come first.
    """
    flags = {**_FLAGS, **(own or {})}

    def flag(found: re.Match[str]) -> str:
        name, value = found.groups()
        plain = name.replace("_", "-")
        if value == "False":
            return f"--no-{plain}"
        flag = flags.get(name, f"--{plain}")
        return flag if value in (None, "True") else f"{flag} {_word(value)}"

    return _QUOTED.sub(flag, text)


def _word(value: str) -> str:
    """A value of Python as one word for the shell; lists have commas there."""
    try:
        parsed = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    if isinstance(parsed, list | tuple):
        return shlex.quote(str(parsed[0]) if len(parsed) == 1 else _in_one_line(parsed))
    return shlex.quote(parsed) if isinstance(parsed, str) else value


def _in_one_line(names: Sequence[Any]) -> str:
    """With commas between them, and those that have one in quotes."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


class SelfDescribing:
    """A dataclass of settings. Values are checked one by one; subclasses check what must go together."""

    def __init_subclass__(cls) -> None:
        declared = (each for each in vars(cls).items() if isinstance(each[1], Field) and _KEY in each[1].metadata)
        _FLAGS.update({name: f"--{about(each).flag}" for name, each in declared if about(each).flag})

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value, known = getattr(self, each.name), about(each)
            if value is None and each.default is None:
                continue
            if known.choices and value not in (allowed := known.allowed(each.default)):
                self.refuse(each.name, f"must be {one_of(allowed)}")
            if known.within and (not isinstance(value, Real) or float(value) not in known.within):
                self.refuse(each.name, f"must be {known.within}")

    def refuse(self, name: str, why: str) -> None:
        """Say what is wrong with a setting."""
        raise InputError(f"`{name}={getattr(self, name)!r}`: {why}")


def one_of(names: Iterable[str]) -> str:
    names = list(names)
    return f"one of {', '.join(names)}" if len(names) > 2 else " or ".join(names)
