"""Every version of the hostile tables reads through the server as Spark reads it directly, from the disk and from S3.

The Python client reads in both formats; our own reader, at the level of the protocol, makes the calls the client never
makes. The matrix of tables: tests/builders/hostile. Changes and times: test_hostile_changes.py.
"""

import json
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
from tests.builders.hostile.families import TABLES
from tests.builders.hostile.log_lines import file_id, same_add, same_head
from tests.builders.hostile.served import CLIENT_FEATURES, SHARE, Served, quietly
from tests.builders.hostile.types import UNANNOUNCED
from tests.builders.promises import outcomes, promised, require_kept
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import refusal

FORMATS: tuple[Format, ...] = ("parquet", "delta")
READABLE = [plan for plan in TABLES.values() if plan.refused is None]

# What can be asked of which table: (name, version, format), or without the version.
READS = [(p.name, v, f) for p in READABLE for v in p.versions for f in p.formats(v)]
CLIENT_READS = [(name, v, f) for name, v, f in READS if not TABLES[name].client_limit(f, v)]
CLIENT_LIMITS = [read for read in READS if read not in CLIENT_READS]
LATEST = [(name, f) for name, v, f in READS if v == TABLES[name].versions[-1]]
NEEDY = [(p.name, v) for p in READABLE for v in p.versions if p.needs_of(v)]

# Others are shown in words of their own: the portal's own tests look at those.
SHOWN_AS_THEY_ARE = ("byte", "short", "integer", "long", "string", "boolean", "date")

pytestmark = [
    pytest.mark.timeout(1200),
    # The client's own: it concatenates empty frames, and forgets a folder when a table has no files.
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]


@pytest.mark.parametrize(("name", "version", "fmt"), CLIENT_READS)
def test_the_python_client_reads_what_spark_reads(lake: Served, name: str, version: int, fmt: Format) -> None:
    frame = quietly(
        delta_sharing.load_as_pandas, lake.url(name), version=version, use_delta_format=fmt == "delta"
    )
    same_frame(frame, lake.tables[name].rows(version))


@pytest.mark.parametrize(
    "name", sorted({name for name, v, _ in CLIENT_READS if v == TABLES[name].versions[-1]})
)
def test_the_python_client_finds_version_and_format_by_itself(lake: Served, name: str) -> None:
    frame = quietly(delta_sharing.load_as_pandas, lake.url(name))
    same_frame(frame, lake.tables[name].rows(lake.tables[name].latest))


@pytest.mark.parametrize(("name", "version", "fmt"), CLIENT_LIMITS)
def test_what_the_python_client_cannot_read_is_its_own_limit(
    lake: Served, name: str, version: int, fmt: Format
) -> None:
    """Without any server, what the client reads with gets it wrong as well; or the client announces too little."""
    if TABLES[name].client_limit(fmt, version) == UNANNOUNCED:
        reader = lake.reader(name, fmt, CLIENT_FEATURES)
        answer = lake.client.post(f"{reader.path}/query", json={"version": version}, headers=reader.headers())
        assert any(need in refusal(answer, 400)["message"] for need in TABLES[name].needs_of(version))
        return
    read = {"parquet": read_by_pyarrow, "delta": read_by_the_kernel}[fmt]
    with pytest.raises((AssertionError, pa.ArrowInvalid)):
        same_frame(read(lake.local[name]).to_pandas(), lake.tables[name].rows(version))


@pytest.mark.parametrize(("name", "version", "fmt"), READS)
def test_our_reader_reads_what_spark_reads(lake: Served, name: str, version: int, fmt: Format) -> None:
    reader = lake.reader(name, fmt)
    answer = reader.snapshot(version=version)
    same_rows(reader.rows(answer), lake.tables[name].rows(version))
    alone = reader.metadata(version=version)
    assert (alone.head, alone.version) == (answer.head, version)
    pages = reader.pages(2, version=version)
    assert (pages.head.raw, sorted(pages.ids)) == (answer.head.raw, sorted(answer.ids))
    assert pages.pages == max(1, (len(answer.files) + 1) // 2)


@pytest.mark.parametrize("name", sorted({name for name, _ in LATEST}))
def test_the_portal_shows_the_rows_that_spark_reads(lake: Served, name: str) -> None:
    path = f"/portal/api/shares/{SHARE}/schemas/lake/tables/{name}/preview"
    answer = lake.client.get(httpx.URL(str(lake.client.base_url)).join(path), params={"limit": 500})
    shown = answer.raise_for_status().json()
    expected = lake.tables[name].rows(lake.tables[name].latest)
    assert [(one["name"]) for one in shown["columns"]] == expected.names
    others = [name for name, kind in expected.columns if kind not in SHOWN_AS_THEY_ARE]
    plain = [place for place, name in enumerate(expected.names) if name not in others]
    found = Counter(json.dumps([row[place] for place in plain]) for row in shown["rows"])
    rows = (json.loads(row) for row in expected.without(*others).rows)
    wanted = Counter(json.dumps([None if one is None else as_shown(one) for one in row]) for row in rows)
    assert (found - wanted, found.total()) == (Counter(), min(500, wanted.total()))
    assert shown["hasMore"] == (wanted.total() > 500)


def as_shown(value: object) -> str:
    """A value that a page shows as it is."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("name", "version", "fmt"), READS)
def test_the_lines_are_those_of_the_log(lake: Served, name: str, version: int, fmt: Format) -> None:
    """Also for what the Python client cannot read: every line against the action of the log it stands for."""
    place, reader = lake.local[name], lake.reader(name, fmt)
    state, answer = read_state(place, version), reader.snapshot(version=version)
    same_head(state, answer.head)
    adds = {file_id(fmt, lake.relocation(name)(add["path"])): add for add in state.adds}
    files = {file.id: file for file in answer.files}
    assert sorted(adds) == sorted(files)
    for id_, add in adds.items():
        same_add(place, add, files[id_], answer.head, reader.content(files[id_]))


@pytest.mark.parametrize(("name", "version"), NEEDY)
def test_what_parquet_cannot_carry_is_refused_by_name(lake: Served, name: str, version: int) -> None:
    """Protocol §2.5: by the query and by the metadata, naming what a client has to announce.

    Not every reason is a feature: without one, delta is all that has to be announced.
    """
    features = [need.lower() for need in TABLES[name].needs_of(version) if " " not in need]
    for answer in asked_with(lake, name, version, {}):
        assert "Unsupported Delta Table Properties" in refusal(answer, 400)["message"]
    for answer in asked_with(lake, name, version, {"delta-sharing-capabilities": "responseformat=delta"}):
        if features:
            told = refusal(answer, 400)["message"]
            assert "Unsupported Delta Table Properties" in told
            assert any(feature in told.lower() for feature in features), told
        else:
            assert answer.status_code == 200, answer.text


def asked_with(lake: Served, name: str, version: int, headers: dict[str, str]) -> list[httpx.Response]:
    """The answers to both calls that tell the table."""
    path = lake.reader(name, "parquet").path
    return [
        lake.client.post(f"{path}/query", json={"version": version}, headers=headers),
        lake.client.get(f"{path}/metadata", params={"version": version}, headers=headers),
    ]


@pytest.mark.parametrize(("name", "fmt"), LATEST)
def test_refreshed_and_async_answers_are_the_same_answer(lake: Served, name: str, fmt: Format) -> None:
    reader, table = lake.reader(name, fmt), lake.tables[name]
    assert reader.version() == table.latest
    first = reader.snapshot(includeRefreshToken=True)
    again = reader.refreshed(first)
    spelling = "idempotency_key" if fmt == "delta" else "idempotencyKey"
    later = reader.submitted(key_as=spelling)
    for answer in (again, later):
        assert (answer.version, sorted(answer.ids)) == (table.latest, sorted(first.ids))
    same_rows(reader.rows(later), table.rows(table.latest))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", [plan.name for plan in TABLES.values() if plan.refused])
def test_what_nobody_can_read_is_refused_as_the_tables_fault(lake: Served, name: str, fmt: Format) -> None:
    """Protocol §0.19: a fault that stays is no 5xx, or clients would ask again for minutes."""
    reader = lake.reader(name, fmt)
    refusal(lake.client.get(f"{reader.path}/metadata", headers=reader.headers()), 400)
    refusal(lake.client.post(f"{reader.path}/query", json={}, headers=reader.headers()), 400)


@pytest.mark.parametrize("name", TABLES)
def test_each_client_gets_what_commands_promise(lake: Served, name: str) -> None:
    path, provider = f"{SHARE}.lake.{name}", lake.provider
    found = outcomes(lake.client, path)
    if TABLES[name].refused:
        with pytest.raises(LakeshareError):
            promised(provider.settings, provider.catalog, path)
        assert {served_as for served_as, _ in found.values()} == {None}
    else:
        require_kept(promised(provider.settings, provider.catalog, path), found)


def read_by_the_kernel(place: Path) -> pa.Table:
    """A local table as the kernel in the Python client reads it without any server."""
    import delta_kernel_rust_sharing_wrapper as kernel

    interface = kernel.PythonInterface(place.as_uri())
    scan = kernel.ScanBuilder(kernel.Table(place.as_uri()).snapshot(interface)).build()
    return pa.Table.from_batches(scan.execute(interface))


def read_by_pyarrow(place: Path) -> pa.Table:
    """A local table as the Python client reads the files of a parquet answer."""
    return ds.dataset([str(local_path(place, add["path"])) for add in read_state(place).adds]).to_table()
