"""How long a refusal takes tells nothing of the token: one that was never given, was revoked, or has ended.

Measured where a token is looked up, in turns, so that what else the machine does meets all alike. What comes behind is
the same for each refusal.
"""

import gc
import secrets
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert

from lakeshare_server.access.authentication import Authenticator, PresentedCredential
from lakeshare_server.app import create_app
from lakeshare_server.catalog.credentials import new_token, token_digest
from lakeshare_server.catalog.models import TokenRow
from lakeshare_server.errors import Unauthenticated
from tests.builders.credentials import a_recipient
from tests.builders.sharing import Provider, a_provider_of_flights

ROUNDS = 400
# Of two samples drawn at random, how often the one is the longer: one half when nothing can be told.
CHANCE, TOLERANCE = 0.5, 0.12
YESTERDAY = datetime.now(UTC) - timedelta(days=1)
ENDS: dict[str, dict[str, Any]] = {
    "revoked": {"revoked_at": YESTERDAY},
    "expired": {"expires_at": YESTERDAY},
    "client secret": {"kind": "client_secret"},
}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    return a_provider_of_flights(tmp_path_factory.mktemp("timing"), guesses_per_minute=1_000_000)


@pytest.fixture(scope="module")
def app(provider: Provider) -> Iterator[Any]:
    app = create_app(provider.settings)
    yield app
    app.state.app_state.audit.close()


def tokens_that_were_good(provider: Provider, end: str) -> list[str]:
    known = a_recipient(provider, end.replace(" ", "-"))
    secret_texts = [new_token() for _ in range(ROUNDS)]
    with provider.catalog.writing() as session:
        rows = [
            {
                "recipient_key": known.state.key,
                "id": str(uuid.uuid4()),
                "digest": token_digest(text),
                "created_at": YESTERDAY,
                **ENDS[end],
            }
            for text in secret_texts
        ]
        session.execute(insert(TokenRow), rows)
    return secret_texts


def durations(authenticator: Authenticator, generation: int, kinds: list[list[str]]) -> list[list[float]]:
    """How long each refusal took, a round of one of each kind after the other, the first of them in turns."""
    took: list[list[float]] = [[] for _ in kinds]
    for number, tokens in enumerate(zip(*kinds, strict=True)):
        for place in range(len(kinds)):
            kind = (number + place) % len(kinds)
            asking = PresentedCredential(f"Bearer {tokens[kind]}", "192.0.2.1")
            began = time.perf_counter()
            with pytest.raises(Unauthenticated):
                authenticator.authenticate(asking, generation)
            took[kind].append(time.perf_counter() - began)
    return took


def chance_of_longer(one: list[float], other: list[float]) -> float:
    """How often a sample of the one is longer than one of the other."""
    longer = sum((a > b) + (a == b) / 2 for a in one for b in other)
    return longer / (len(one) * len(other))


@pytest.mark.parametrize("end", ENDS)
def test_a_token_that_was_good_is_refused_no_faster_and_no_slower(
    provider: Provider, app: Any, end: str
) -> None:
    known = tokens_that_were_good(provider, end)
    unknown = [secrets.token_urlsafe(32) for _ in known]
    alike = [text[:-1] + ("A" if text[-1] != "A" else "B") for text in known]
    gc.disable()
    try:
        took = durations(
            app.state.app_state.authenticator, provider.catalog.generation(), [unknown, known, alike]
        )
    finally:
        gc.enable()
    for other in took[1:]:
        assert abs(chance_of_longer(took[0], other) - CHANCE) < TOLERANCE, chance_of_longer(took[0], other)


def test_the_measure_would_notice_a_difference() -> None:
    """A tenth more is told apart, at the spread that refusals have."""
    base = [1.0 + (number * 37 % 100) / 400 for number in range(ROUNDS)]
    assert abs(chance_of_longer(base, base) - CHANCE) < 0.01
    assert abs(chance_of_longer([one * 1.1 for one in base], base) - CHANCE) > TOLERANCE
