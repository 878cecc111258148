"""What `table follow`, `table show` and `table serveability` promise is what a request of each client gets."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from lakeshare_server.catalog import SharedTable, share_table
from lakeshare_server.cli import main
from lakeshare_server.cli.tables import table_app
from lakeshare_server.errors import Unserveable
from lakeshare_server.versions.followed_iceberg import hide_locations
from tests.builders.iceberg_only import TABLES
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, some_rows
from tests.builders.promises import outcomes, promised, require_kept
from tests.builders.sharing import Provider, a_provider, a_server

NAME, PATH = "sales.orders", "lake.sales.orders"


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider = a_provider(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    monkeypatch.chdir(tmp_path)
    return provider


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr("sys.argv", ["lakeshare", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == code, said.err
        return said.out + said.err

    return run


def with_log(table: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The table, each action of its first commit changed."""
    log = table / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        change(action)
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return table


def plain_delta(folder: Path) -> Path:
    return a_delta_table(folder / "deep" / "orders", some_rows(days=1), partitioned_by=())


def files_outside(folder: Path) -> Path:
    def change(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"]["path"] = str(folder / "elsewhere" / "file.parquet")

    return with_log(plain_delta(folder), change)


def places_on_earth(folder: Path) -> Path:
    """Two columns of a type that no known client reads."""

    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for name in ("here", "there"):
                kind = "geometry(OGC:CRS84)"
                schema["fields"].append({"name": name, "type": kind, "nullable": True, "metadata": {}})
            action["metaData"]["schemaString"] = json.dumps(schema)
        if "protocol" in action:
            features = {"readerFeatures": ["geospatial"], "writerFeatures": ["geospatial"]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}

    return with_log(plain_delta(folder), change)


def needing(*features: str, column: str | None = None, **properties: str) -> Callable[[Path], Path]:
    """A Delta table that announces reader features, with one more column of a type, or with properties."""

    def change(action: dict[str, Any]) -> None:
        if "protocol" in action and features:
            both = {"readerFeatures": list(features), "writerFeatures": list(features)}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **both}
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            if column is not None:
                schema["fields"].append({"name": "odd", "type": column, "nullable": True, "metadata": {}})
            if "typeWidening" in features:
                steps = [{"fromType": "short", "toType": "integer"}]
                schema["fields"][2]["metadata"] = {"delta.typeChanges": steps}
            action["metaData"]["schemaString"] = json.dumps(schema)
            named = {f"delta.{name.replace('_', '.')}": value for name, value in properties.items()}
            action["metaData"]["configuration"] = named

    return lambda folder: with_log(plain_delta(folder), change)


def without_a_zone(folder: Path) -> Path:
    rows = some_rows(days=1).append_column("at", pa.nulls(4, pa.timestamp("us")))
    return Path(an_iceberg_table(folder / "warehouse", rows).table.location().removeprefix("file://"))


MADE: dict[str, Callable[[Path], Path]] = {
    "delta": plain_delta,
    "delta, files outside": files_outside,
    "delta, geospatial": places_on_earth,
    "delta, deletion vectors": needing("deletionVectors", enableDeletionVectors="true"),
    "delta, widened types": needing("typeWidening"),
    "delta, variants": needing("variantType", column="variant"),
    "delta, timestamps without a zone": needing("timestampNtz", column="timestamp_ntz"),
    "delta, UniForm that nobody converted": needing(universalFormat_enabledFormats="iceberg"),
    "iceberg, timestamps without a zone": without_a_zone,
    **{case: lambda folder, make=make: make(folder / "warehouse")[0] for case, make in TABLES.items()},  # type: ignore[misc]
}


REFUSED: dict[str, Callable[[Path], Path]] = {
    "UNSUPPORTED_TYPE": needing(column="interval"),
    "VOID_COLUMN": needing(column="void"),
}
"""What nobody can read, by the code that `follow` refuses it with."""


@dataclass(frozen=True)
class Shared:
    """All tables of the matrix followed as `sales.table-N`, at one running server, and what each command said."""

    provider: Provider
    client: httpx.Client
    followed: dict[str, str]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("promises")
    provider, followed = a_provider(folder), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
        for number, (case, make) in enumerate(MADE.items()):
            table = make(folder / str(number))
            ended = CliRunner().invoke(table_app, ["follow", str(table), "--as", f"sales.table-{number}"])
            followed[case] = ended.output
    with a_server(provider) as server, server.client(provider.recipient(shares=("lake",))) as client:
        yield Shared(provider, client, followed)


@pytest.mark.parametrize("case", MADE)
def test_each_client_gets_what_is_promised(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(shared.provider.settings.state_dir))
    path = f"lake.sales.table-{list(MADE).index(case)}"
    promises = promised(shared.provider.settings, shared.provider.catalog, path)
    require_kept(promises, outcomes(shared.client, path))
    told = CliRunner().invoke(table_app, ["serveability", path, "--json"], catch_exceptions=False).output
    expected = {**{id_: one.served_as for id_, one in promises.items()}, "directory": None}
    assert {one["id"]: one["served_as"] for one in json.loads(told)} == expected
    lines = CliRunner().invoke(table_app, ["show", path], catch_exceptions=False).output.splitlines()
    shown = dict(line.split("\t") for line in lines)
    assert shown["parquet format"].startswith("yes") == (promises["python-parquet"].served_as is not None)
    assert shown["Iceberg REST API"].startswith("yes") == (promises["iceberg-rest"].served_as is not None)
    followed = shared.followed[case]
    for id_, verdict in promises.items():
        assert (f"{id_}: no, " in followed) == (verdict.served_as is None), followed
    is_for_nobody = all(one.served_as is None for one in promises.values())
    assert ("no known client can read it" in followed) == is_for_nobody, followed


@pytest.mark.parametrize("code", REFUSED)
def test_what_nobody_can_read_is_refused_by_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    table = REFUSED[code](tmp_path)
    ended = CliRunner().invoke(table_app, ["follow", str(table), "--as", "sales.orders"])
    assert isinstance(ended.exception, Unserveable)
    assert ended.exception.code == code
    listed = CliRunner().invoke(table_app, ["list"], catch_exceptions=False)
    assert "sales.orders" not in listed.output


def test_files_outside_the_allowed_locations_are_told_by_every_command(
    run: Callable[..., str], provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = run("table", "follow", str(files_outside(tmp_path)), "--as", NAME)
    for said in (followed, run("table", "show", PATH), run("table", "serveability", PATH)):
        assert f"names files in {tmp_path / 'elsewhere'} on the server's own disk" in said
    assert f"LAKESHARE_FILES_ALSO_IN={tmp_path / 'elsewhere'}" in followed
    monkeypatch.setenv("LAKESHARE_FILES_ALSO_IN", str(tmp_path / "elsewhere"))
    assert "parquet format\tyes" in run("table", "show", PATH)


def test_a_feature_that_several_columns_need_is_named_once(
    run: Callable[..., str], provider: Provider, tmp_path: Path
) -> None:
    run("table", "follow", str(places_on_earth(tmp_path)), "--as", NAME)
    assert "delta format\tyes, needs geospatial, which no known client announces" in run(
        "table", "show", PATH
    )
    with a_server(provider) as server, server.client(provider.recipient(shares=("lake",))) as client:
        answer = client.post("/shares/lake/schemas/sales/tables/orders/query")
        assert "readerfeatures=geospatial." in answer.json()["message"]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("/w/t: /w/t/x.parquet lacks column a.", "The table: a file of it lacks column a."),
        (
            "/w/t/x.parquet has no field ids, and another file b.",
            "A file of it has no field ids, and another file b.",
        ),
        ("The footer of /w/t/x.parquet cannot be read.", "The footer of … cannot be read."),
    ],
)
def test_a_sentence_keeps_its_subject_where_a_path_is_left_out(reason: str, told: str) -> None:
    refusal = hide_locations(Unserveable(reason, "Mend it.", "ODD"), ("/w/t",))
    assert isinstance(refusal, Unserveable)
    assert refusal.reason == told


def test_a_table_is_judged_as_it_is_shared(
    provider: Provider, run: Callable[..., str], tmp_path: Path
) -> None:
    """A lake table that nobody shares is judged as if it were; the path of a shared one is judged by that place."""
    provider.follow(NAME, plain_delta(tmp_path))
    told = [one["served_as"] for one in json.loads(run("table", "serveability", NAME, "--json"))]
    assert told == ["parquet", "delta", "delta", None]
    share_table(provider.catalog, "lake", SharedTable("sales", "orders", NAME))
    assert len(json.loads(run("table", "serveability", PATH, "--json"))) == 5
