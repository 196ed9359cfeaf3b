"""Figures as a report writes them."""

from __future__ import annotations

from typing import Any

from streamrf.support.units import format_count


def number(value: Any) -> str:
    """A figure in a table."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return str(value)
    return format_count(value) if isinstance(value, int) else f"{value:.5g}"
