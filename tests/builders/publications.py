"""Publications to fill a ledger with."""

import uuid
from dataclasses import replace
from typing import Any

from lakeshare_server.catalog import NewPublication

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
