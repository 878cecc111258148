"""What delta format adds to a file."""

from urllib.parse import parse_qsl, urlsplit

from lakeshare_conformance.case import (
    COUNT,
    DELTA,
    MUST,
    WHOLE,
    NothingToTry,
    expect,
    expect_fields,
    on_views,
)
from lakeshare_conformance.ground import View
from lakeshare_conformance.reply import Action

SIGNATURE_KEYS = frozenset(
    ("x-amz-signature", "sp", "x-goog-credential", "x-oss-credential", "x-databricks-signature")
)


@on_views(MUST, "0.2", "6.1", formats=(DELTA,))
def urls_have_a_signature_the_python_client_knows(view: View) -> None:
    """The query of each URL, of vectors too, has a key that the Python client knows, like X-Amz-Signature."""
    for action in view.snapshot.actions:
        for url in urls_of(action):
            keys = {key.lower() for key, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
            expect(
                bool(keys & SIGNATURE_KEYS),
                action.where,
                f"one of {sorted(SIGNATURE_KEYS)} in the URL",
                sorted(keys),
            )


@on_views(MUST, "2.2", formats=(DELTA,))
def mapped_columns_keep_their_mapping(view: View) -> None:
    """With column mapping every column of schemaString has its id and its physical name."""
    if not view.snapshot.is_mapped:
        raise NothingToTry("no table maps its columns")
    for field in view.snapshot.fields:
        metadata, where = field.get("metadata") or {}, f"{view.snapshot.where}, column {field['name']}"
        expect_fields(where, metadata, {"delta.columnMapping.id": WHOLE}, {})
        name = metadata.get("delta.columnMapping.physicalName")
        expect(isinstance(name, str) and name != "", where, "delta.columnMapping.physicalName", metadata)


@on_views(MUST, "0.18", "2.2", formats=(DELTA,))
def row_tracking_is_whole(view: View) -> None:
    """With delta.enableRowTracking every file has baseRowId and defaultRowCommitVersion; Spark fails otherwise."""
    if view.snapshot.configuration.get("delta.enableRowTracking") != "true":
        raise NothingToTry("no table is sent with row tracking")
    for action in view.snapshot.actions:
        expect_fields(action.where, action.inner, {"baseRowId": COUNT, "defaultRowCommitVersion": COUNT}, {})


def urls_of(action: Action) -> list[str]:
    """The URLs a client fetches for a file: its own, and its deletion vector's."""
    vector = action.vector or {}
    return [action.url, *([str(vector.get("pathOrInlineDv"))] if vector.get("storageType") == "p" else [])]
