"""Tables in S3: snippets read them as they are printed, with credentials; Snowflake is sent to what is published."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from lakeshare_pipelines.cli.main import main
from lakeshare_server.catalog import allow_directory_access
from lakeshare_server.lazy import LazyModule
from tests.builders.iceberg_rest import SECRET_BRANCH, SECRET_TAG, leave_secrets, state_of
from tests.builders.lake_tables import IcebergState, IcebergTable, some_rows
from tests.builders.sharing import Provider, a_provider, a_server
from tests.integration.s3_server import REGION, S3Server

SHARED = "flights.lake.flights"
pl = LazyModule("polars")
BY_CREDENTIALS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pyiceberg": lambda names: pl.from_arrow(names["table"].scan().to_arrow()),
    "polars": lambda names: names["frame"].collect(),
    "duckdb": lambda names: names["connection"].table("shared").pl(),
}


@pytest.fixture(scope="module")
def s3(s3: S3Server) -> S3Server:
    s3.client().create_bucket(Bucket="engines")
    return s3


@pytest.fixture
def made(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Provider, IcebergTable]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": s3.admin.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.admin.secret_key,
        "LAKESHARE_STATE_DIR": str(tmp_path / "state"),
        "LAKESHARE_S3_ENDPOINT": s3.endpoint,
        "LAKESHARE_S3_REGION": REGION,
        "LAKESHARE_S3_ROLE_ARN": s3.role_arn,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    reads = {
        "s3.endpoint": s3.endpoint,
        "s3.region": REGION,
        "s3.access-key-id": s3.admin.access_key,
        "s3.secret-access-key": s3.admin.secret_key,
    }
    # Publishing reads by pyiceberg's own settings, of which AWS itself is the only endpoint.
    read = StaticTable.from_metadata
    monkeypatch.setattr(StaticTable, "from_metadata", lambda location: read(location, reads))
    table = IcebergTable(f"s3://engines/{tmp_path.name}", some_rows().schema, **reads)
    table.append(some_rows())
    return a_provider(tmp_path), table


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[object, str]:
    monkeypatch.setattr("sys.argv", ["lakeshare", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return ended.value.code, said.out + said.err


def test_snippets_read_with_credentials_and_else_by_signed_requests(
    made: tuple[Provider, IcebergTable], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    provider, table = made
    provider.publish_iceberg("lake.flights", state_of(table))
    provider.share("lake.flights", history=True)
    token = provider.recipient()
    _, signed = run(monkeypatch, capsys, "snippet", SHARED, "--engine", "pyiceberg")
    assert "FsspecFileIO" in signed
    code, refusal = run(monkeypatch, capsys, "snippet", SHARED, "--engine", "trino")
    assert (code, "directory-access flights.lake.flights --allow" in refusal) == (1, True)

    allow_directory_access(provider.catalog, "flights", "lake", "flights", allowed=True)
    source = sorted(some_rows()["distance"].to_pylist())
    with a_server(provider) as server:
        door = server.url.replace("/delta-sharing", "/iceberg")
        Path("recipient.share").write_text(json.dumps({"bearerToken": token, "icebergEndpoint": door}))
        for engine, result in BY_CREDENTIALS.items():
            code, text = run(monkeypatch, capsys, "snippet", SHARED, "--engine", engine)
            assert (code, "FsspecFileIO" in text, "Iceberg REST" in text) == (0, False, True), text
            names: dict[str, Any] = {}
            exec(compile(text, f"{engine}.py", "exec"), names)
            assert "day" in capsys.readouterr().out
            assert sorted(result(names)["distance"].to_list()) == source
    code, text = run(monkeypatch, capsys, "snippet", SHARED, "--engine", "trino")
    assert (code, f"iceberg.rest-catalog.uri={door}" in text) == (0, True)


def test_snowflake_is_sent_to_a_file_of_published_snapshots_alone_once_the_fix_is_made(
    made: tuple[Provider, IcebergTable], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    provider, table = made
    words = ["snowflake", "ddl", "lake.flights", "--external-volume", "v", "--catalog-integration", "c"]
    first = state_of(table)
    provider.publish_iceberg("lake.flights", first)
    leave_secrets(table)
    provider.publish_iceberg("lake.flights", state_of(table))
    code, text = run(monkeypatch, capsys, *words)
    assert code == 1
    assert "lists 1 snapshots that were never published" in text
    assert SECRET_BRANCH in text

    secret = table.table.metadata.refs[SECRET_BRANCH].snapshot_id
    with table.table.manage_snapshots() as manage:
        manage.remove_branch(SECRET_BRANCH).remove_tag(SECRET_TAG)
    table.table.maintenance.expire_snapshots().by_id(secret).commit()
    fixed = state_of(table)
    provider.publish_iceberg("lake.flights", fixed)
    code, text = run(monkeypatch, capsys, *words)
    assert code == 0, text
    relative = fixed.metadata_location.removeprefix("s3://engines/")
    assert f"METADATA_FILE_PATH = '{relative}';" in text
    opened = StaticTable.from_metadata(f"s3://engines/{relative}").metadata
    assert (
        [one.snapshot_id for one in opened.snapshots] == [opened.current_snapshot_id] == [first.snapshot_id]
    )


def test_snowflake_is_not_sent_to_a_snapshot_that_is_not_the_current_one(
    made: tuple[Provider, IcebergTable], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    provider, table = made
    first = state_of(table)
    later = table.append(some_rows(days=1))
    for state in (first, later, IcebergState(later.metadata_location, first.snapshot_id)):
        provider.publish_iceberg("lake.flights", state)
    code, text = run(
        monkeypatch,
        capsys,
        "snowflake",
        "ddl",
        "lake.flights",
        "--external-volume",
        "v",
        "--catalog-integration",
        "c",
    )
    assert code == 1
    assert f"Snowflake would read snapshot {later.snapshot_id}" in text
    assert "CREATE" not in text
