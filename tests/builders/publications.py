"""Publications to fill a ledger with."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from lakeshare_server.catalog import NewPublication, Publication

NOTHING_PINNED = NewPublication(
    table="lake.flights",
    set_name="lake",
    format="iceberg",
    location="/nowhere",
    table_id="00000000-0000-0000-0000-000000000000",
    schema_string='{"type":"struct","fields":[]}',
    rows=0,
    files=0,
    size_bytes=0,
    index_digest="0" * 64,
    contract_digest="c" * 64,
    verdicts={"green": True},
    run_id="run-1",
    partition="2013-01-01",
)


def a_publication(**different: Any) -> NewPublication:
    """A publication of nothing in particular, but for what the test says."""
    return replace(NOTHING_PINNED, **{"run_id": str(uuid.uuid4()), **different})


def published(*, version: int = 0, **different: Any) -> Publication:
    """The same as the ledger gives it back."""
    new = a_publication(**different)
    fields = {name: getattr(new, name) for name in new.__dataclass_fields__}
    return Publication(**fields, version=version, published_at=datetime(2030, 1, 1, tzinfo=UTC))
