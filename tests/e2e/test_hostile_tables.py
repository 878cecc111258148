"""Every version of the hostile tables reads through the server as Spark reads it directly, the newest in both formats.

All tables on the disk, and of some of every family the newest version in an S3 store. The Python client reads in both
formats; our own reader, at the level of the protocol, makes the calls the client never makes. The matrix of tables:
tests/builders/hostile. Changes and times: test_hostile_changes.py.
"""

import json
import math
from collections import Counter
from pathlib import Path

import delta_sharing
import httpx
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from lakeshare_server.errors import LakeshareError
from tests.builders.canonical import same_frame, same_rows
from tests.builders.delta_log import local_path, read_state
from tests.builders.hostile.families import FAMILIES, TABLES
from tests.builders.hostile.log_lines import file_id, same_add, same_head
from tests.builders.hostile.matrix import recorded_sources, sources
from tests.builders.hostile.place import HostileTable
from tests.builders.hostile.served import CLIENT_FEATURES, SHARE, ServedTable, quietly
from tests.builders.hostile.types import UNANNOUNCED
from tests.builders.kernel import read_by_the_kernel
from tests.builders.promises import outcomes, promised, require_kept
from tests.builders.protocol_lines import Format, Line
from tests.builders.protocol_reader import Answer, refusal

PLACES = [*(("disk", name) for name in TABLES), *(("s3", p.name) for p in TABLES.values() if p.on_stores)]
READABLE = [(store, name) for store, name in PLACES if TABLES[name].refused is None]
REFUSED = [(store, name) for store, name in PLACES if TABLES[name].refused]

# Others are shown in words of their own: the portal's own tests look at those.
SHOWN_AS_THEY_ARE = ("byte", "short", "integer", "long", "string", "boolean", "date")

pytestmark = [
    # The client's own: it concatenates empty frames, and forgets a folder when a table has no files.
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]


def test_the_recorded_tables_are_those_of_the_builders(matrix: dict[str, HostileTable]) -> None:
    """Otherwise `python -m tests.builders.hostile.matrix` records them again, in about four minutes."""
    assert recorded_sources() == sources()
    assert set(matrix) == set(TABLES)
    for name, plan in TABLES.items():
        judged = matrix[name].judged
        assert set(judged["versions"]) == {str(version) for version in plan.versions}, name
        assert set(judged["cdf"]) == {f"{start}-{end}" for start, end in plan.cdf}, name


def test_tables_of_every_family_are_in_the_s3_store() -> None:
    stored = {plan.build.__module__ for plan in TABLES.values() if plan.on_stores}
    assert stored == {family.__name__ for family in FAMILIES}


@pytest.mark.parametrize("table", READABLE, indirect=True, ids="-".join)
def test_a_table_reads_as_spark_reads_it(table: ServedTable, subtests: pytest.Subtests) -> None:
    newest = table.judged.latest
    chosen = client_choice(table)
    for version, fmt in versions_read(table):
        with subtests.test("a version", version=version, format=fmt):
            answer = table.reader(fmt).snapshot(version=version)
            require_spark_rows(table, answer)
            require_lines_of_log(table, answer)
            if version == newest:
                require_same_answers_by_other_calls(table, answer)
            if (version, fmt) != (newest, chosen):
                require_client_rows(table, version, fmt)
    if chosen is not None:
        with subtests.test("the Python client's own choice of version and format"):
            same_frame(quietly(delta_sharing.load_as_pandas, table.url), table.newest_rows)
    with subtests.test("the portal"):
        require_preview_rows(table)
    if table.served.store != "disk":
        return
    for version in table.plan.versions:
        if table.plan.needs_of(version):
            with subtests.test("a version that parquet cannot carry", version=version):
                require_refusal_by_name(table, version)
    with subtests.test("what commands promise"):
        settings, catalog = table.served.provider.settings, table.served.provider.catalog
        require_kept(promised(settings, catalog, table.path), outcomes(table.client, table.path))


def versions_read(table: ServedTable) -> list[tuple[int, Format]]:
    """On the disk every version, and the newest one that a format can carry in each format.

    In another store, which serves both formats alike, the newest version in one of them.
    """
    reads = list(table.plan.reads)
    if table.served.store != "disk":
        return reads[-1:]
    newest = {fmt: version for version, fmt in reads}
    return [
        (version, fmt)
        for version, fmt in reads
        if newest[fmt] == version or fmt == table.plan.formats(version)[-1]
    ]


def client_choice(table: ServedTable) -> Format | None:
    """The format in which the Python client reads the newest version by its own choice, if it can read it."""
    newest = table.judged.latest
    fmt = table.plan.formats(newest)[0]
    return None if table.plan.client_limit(fmt, newest) else fmt


def require_spark_rows(table: ServedTable, answer: Answer) -> None:
    """Our reader's rows are Spark's; the metadata alone and all pages together are the same answer."""
    reader, version = table.reader(answer.head.format), answer.version
    same_rows(reader.rows(answer), table.judged.rows(version), "our reader")
    alone = reader.metadata(version=version)
    assert (alone.head, alone.version) == (answer.head, version)
    page_size = max(2, len(answer.files) // 3)
    pages = reader.pages(page_size, version=version)
    assert (pages.head.raw, sorted(pages.ids)) == (answer.head.raw, sorted(answer.ids))
    assert pages.pages == max(1, math.ceil(len(answer.files) / page_size))


def require_lines_of_log(table: ServedTable, answer: Answer) -> None:
    """Every line against the action of the log that it stands for, also of what the Python client cannot read."""
    place, fmt = table.place, answer.head.format
    state, reader = read_state(place, answer.version), table.reader(fmt)
    same_head(state, answer.head)
    adds = {file_id(fmt, table.relocated(add["path"])): add for add in state.adds}
    files = {file.id: file for file in answer.files}
    assert sorted(adds) == sorted(files)
    for id_, add in adds.items():
        same_add(place, add, files[id_], answer.head, reader.content(files[id_]))


def require_client_rows(table: ServedTable, version: int, fmt: Format) -> None:
    """The Python client reads Spark's rows, or cannot because of a limit of its own."""
    expected = table.judged.rows(version)
    limit = table.plan.client_limit(fmt, version)
    if limit is None:
        use_delta = fmt == "delta"
        frame = quietly(delta_sharing.load_as_pandas, table.url, version=version, use_delta_format=use_delta)
        same_frame(frame, expected, "the Python client")
    elif limit == UNANNOUNCED:
        reader = table.reader(fmt, CLIENT_FEATURES)
        answer = table.client.post(
            f"{reader.path}/query", json={"version": version}, headers=reader.headers()
        )
        assert any(need in refusal(answer, 400)["message"] for need in table.plan.needs_of(version))
    else:
        # Without any server, what the client reads with gets it wrong as well.
        read = {"parquet": read_by_pyarrow, "delta": read_by_the_kernel}[fmt]
        with pytest.raises((AssertionError, pa.ArrowInvalid)):
            same_frame(read(table.place).to_pandas(), expected)


def require_refusal_by_name(table: ServedTable, version: int) -> None:
    """Protocol §2.5: query and metadata refuse, naming what a client has to announce.

    Not every reason is a feature: without one, delta is all that has to be announced.
    """
    features = [need.lower() for need in table.plan.needs_of(version) if " " not in need]
    for answer in query_and_metadata(table, version, {}):
        assert "Unsupported Delta Table Properties" in refusal(answer, 400)["message"]
    for answer in query_and_metadata(table, version, {"delta-sharing-capabilities": "responseformat=delta"}):
        if features:
            message = refusal(answer, 400)["message"]
            assert "Unsupported Delta Table Properties" in message
            assert any(feature in message.lower() for feature in features), message
        else:
            assert answer.status_code == 200, answer.text


def query_and_metadata(table: ServedTable, version: int, headers: dict[str, str]) -> list[httpx.Response]:
    path = table.reader("parquet").path
    return [
        table.client.post(f"{path}/query", json={"version": version}, headers=headers),
        table.client.get(f"{path}/metadata", params={"version": version}, headers=headers),
    ]


def require_same_answers_by_other_calls(table: ServedTable, newest: Answer) -> None:
    """The version call, a refreshed answer and an async query give the lines of the newest version."""
    fmt = newest.head.format
    reader = table.reader(fmt)
    assert reader.version() == newest.version
    first = reader.snapshot(includeRefreshToken=True)
    again = reader.refreshed(first)
    spelling = "idempotency_key" if fmt == "delta" else "idempotencyKey"
    later = reader.submitted(key_as=spelling)
    for answer in (first, again, later):
        assert (answer.version, answer.head.shape) == (newest.version, newest.head.shape)
        assert states_of_files(answer) == states_of_files(newest)


def states_of_files(answer: Answer) -> list[Line]:
    return sorted((file.state for file in answer.files), key=lambda state: state["id"])


def require_preview_rows(table: ServedTable) -> None:
    """The portal shows the rows that Spark reads."""
    path = f"/portal/api/shares/{SHARE}/schemas/lake/tables/{table.plan.name}/preview"
    url = httpx.URL(str(table.client.base_url)).join(path)
    shown = table.client.get(url, params={"limit": 500}).raise_for_status().json()
    expected = table.newest_rows
    assert [column["name"] for column in shown["columns"]] == expected.names
    others = [name for name, kind in expected.columns if kind not in SHOWN_AS_THEY_ARE]
    plain = [place for place, name in enumerate(expected.names) if name not in others]
    found = Counter(json.dumps([row[place] for place in plain]) for row in shown["rows"])
    rows = (json.loads(row) for row in expected.without(*others).rows)
    wanted = Counter(
        json.dumps([None if value is None else as_shown(value) for value in row]) for row in rows
    )
    assert (found - wanted, found.total()) == (Counter(), min(500, wanted.total()))
    assert shown["hasMore"] == (wanted.total() > 500)


def as_shown(value: object) -> str:
    """A value that a page shows as it is."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("table", REFUSED, indirect=True, ids="-".join)
def test_what_nobody_can_read_is_refused_as_the_tables_fault(table: ServedTable) -> None:
    """Protocol §0.19: a fault that stays is no 5xx, or clients would ask again for minutes."""
    for fmt in ("parquet", "delta"):
        reader = table.reader(fmt)
        refusal(table.client.get(f"{reader.path}/metadata", headers=reader.headers()), 400)
        refusal(table.client.post(f"{reader.path}/query", json={}, headers=reader.headers()), 400)
    with pytest.raises(LakeshareError):
        promised(table.served.provider.settings, table.served.provider.catalog, table.path)
    assert {served_as for served_as, _ in outcomes(table.client, table.path).values()} == {None}


def read_by_pyarrow(place: Path) -> pa.Table:
    """A local table as the Python client reads the files of a parquet answer."""
    return ds.dataset([str(local_path(place, add["path"])) for add in read_state(place).adds]).to_table()
