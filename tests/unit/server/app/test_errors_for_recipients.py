"""What recipients read of an error names no place and no setting of the provider; the provider's text names all."""

import pytest

from lakeshare_server.errors import (
    BadRequest,
    LakeshareError,
    NotFound,
    StoreDenied,
    StoreMissing,
    TableFilesMissing,
    Unavailable,
    Unserveable,
    without_places,
)

PLACES = [
    "/srv/lake/orders",
    "/srv/my lake/orders",
    "s3://bucket/lake/orders",
    "abfss://c@acme.dfs.core.windows.net/lake",
    "file:/srv/lake",
    "hdfs://name:8020/lake",
    "https://idp.corp/realm",
    "iceberg:prod/sales.orders",
    "nessie:prod/sales.orders@main",
    "LAKESHARE_FILES_ALSO_IN=/srv",
]


@pytest.mark.parametrize("place", PLACES)
def test_no_error_about_a_table_tells_a_place(place: str) -> None:
    errors: list[LakeshareError] = [
        StoreMissing(place),
        StoreDenied(place),
        TableFilesMissing(place, f"{place} is not whole"),
        Unserveable(f"orders names files in {place}, which is wrong.", f"Copy {place}.", "CODE", [place]),
        Unavailable(f"'{place}' cannot be read: no route", f"Set {place}."),
    ]
    for error in errors:
        text = error.for_recipient()
        assert place in str(error)
        assert place not in text
        for part in ("srv", "bucket", "acme", "8020", "idp", "prod", "LAKESHARE"):
            assert part not in text, text
        assert text[-1] in ".]"


def test_what_an_error_is_about_stays() -> None:
    missing = TableFilesMissing("/srv/t", "version 3 of /srv/t/_delta_log is gone")
    assert missing.for_recipient() == "The table cannot be read, table files missing: version 3 of … is gone."
    refused = Unserveable(
        "orders names files in /srv/x.", "Provider: set LAKESHARE_FILES_ALSO_IN=/srv.", "WHERE"
    )
    assert refused.for_recipient() == "orders names files in …. Provider: the server's log says more. [WHERE]"
    told = Unserveable("column a/b is of type int/long.", "Use responseformat=delta.")
    assert told.for_recipient() == str(told)


@pytest.mark.parametrize(
    "error",
    [
        NotFound("[Share/Schema/Table]", "sales/lake/orders"),
        BadRequest("timestamp", "/2024/01/01", "Give a time."),
    ],
)
def test_what_a_recipient_said_itself_is_repeated(error: LakeshareError) -> None:
    assert error.for_recipient() == str(error)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("in /srv/a, /srv/b; (/srv/c) and '/srv/d e'.", "in …, …; (…) and '…'."),
        ("see s3://bucket/x: gone.", "see …: gone."),
        ("1/2 of the files, a/b", "1/2 of the files, a/b"),
        ("readerfeatures=deletionvectors,columnmapping", "readerfeatures=deletionvectors,columnmapping"),
    ],
)
def test_places_are_left_out_of_texts_and_nothing_else(text: str, left: str) -> None:
    assert without_places(text) == left
