"""The conformance suite with a part of its predicates: they are three quarters of its requests."""

from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from lakeshare_conformance.cases import predicates
from tests.builders.campaign import IS_CAMPAIGN

EVERY = 16


def ask_fewer_predicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a sixteenth of the predicates of each view, other ones of each; under `make campaign` ask all."""
    if IS_CAMPAIGN:
        return
    expect_nothing_lost, expect_limits_kept = (
        predicates._expect_nothing_lost_by,
        predicates._expect_limits_kept,
    )
    views, hints = count(), count()

    def expect_fewer(view: Any, files: Any, asked: Iterable[Any]) -> None:
        every = list(asked)
        expect_nothing_lost(view, files, every[next(views) % EVERY :: EVERY] or every[:1])

    def expect_fewer_limits(view: Any, files: Any, hint: Any) -> None:
        if next(hints) % EVERY == 0:
            expect_limits_kept(view, files, hint)

    monkeypatch.setattr(predicates, "_expect_nothing_lost_by", expect_fewer)
    monkeypatch.setattr(predicates, "_expect_limits_kept", expect_fewer_limits)
