"""Errors: one message for Python and the command line."""

import pytest
from commands import streamrf

from streamrf.support.errors import InputError, with_flags


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`length_scale` must be positive, not -1", "--length-scale must be positive, not -1"),
        ("replace it with `overwrite=True`", "replace it with --overwrite"),
        ("drop them with `nan='drop'` or lower `D`", "drop them with --nan drop or lower --D"),
        ("run `streamrf solve` on it; ``two`` stay", "run `streamrf solve` on it; ``two`` stay"),
    ],
)
def test_settings_become_flags_on_the_command_line(message, shown):
    assert with_flags(message) == shown


def test_the_command_line_prints_flags(monkeypatch):
    def refuse(*_, **__):
        raise InputError("`checkpoint_every` must be positive")

    monkeypatch.setattr("streamrf.support.memory.limit_heaps", refuse)
    answer = streamrf("inspect", "nothing")
    assert (answer.code, answer.err) == (2, "streamrf: --checkpoint-every must be positive\n")
