"""Snowflake gets a publication only where it would show that very state; all else is refused with a remedy."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshare_pipelines.cli.main import main
from lakeshare_pipelines.errors import SnowflakeError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.snowflake import PublishedTable, get_published_state, require_readable
from lakeshare_server.catalog import FollowedTables, Ledger
from lakeshare_server.errors import StoreMissing, TableFilesMissing
from tests.builders.answering_store import AnsweringStore
from tests.builders.database_schema import open_migrated
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.publications import a_publication, published
from tests.builders.s3_objects import s3_with

METADATA = "s3://lake/tables/sales/orders/metadata/7.metadata.json"
ICEBERG = {"table": "sales.orders", "metadata_location": METADATA, "snapshot_id": 70}
DELTA = {
    "table": "sales.daily",
    "format": "delta",
    "location": "s3://lake/tables/sales/daily",
    "delta_version": 2,
}


def metadata(current: int, *snapshots: int, **refs: int) -> bytes:
    return json.dumps(
        {
            "current-snapshot-id": current,
            "snapshots": [{"snapshot-id": one} for one in (current, *snapshots)],
            "refs": {name: {"snapshot-id": one} for name, one in refs.items()},
        }
    ).encode()


METADATA_OF = {
    "7": metadata(70, 60, main=70),
    "6": gzip.compress(metadata(60)),
    "none": b'{"current-snapshot-id": -1}',
    "cut": b'{"current-snapshot-id": 7',
    "list": b'{"current-snapshot-id": 7, "snapshots": [7]}',
    "hidden": metadata(70, 60, 65, 66, main=70, audit=66, old=60),
    "branch": metadata(70, main=70, stray=65),
}


@pytest.fixture(scope="module")
def store() -> Iterator[AnsweringStore]:
    objects = {
        f"lake/tables/sales/orders/metadata/{name}.metadata.json": body for name, body in METADATA_OF.items()
    }
    for version in range(3):
        objects[f"lake/tables/sales/daily/_delta_log/{version:020}.json"] = b"{}\n"
    with s3_with(objects) as running:
        yield running


@pytest.fixture
def settings(store: AnsweringStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeSettings:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AK",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "LAKESHARE_S3_ENDPOINT": store.endpoint,
        "LAKESHARE_S3_REGION": "us-east-1",
        "LAKESHARE_STATE_DIR": str(tmp_path / "state"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return LakeSettings()


def among(**different: object) -> PublishedTable:
    """A publication of a table whose publications are the snapshots 60 and 70."""
    return PublishedTable(published(**different), {60, 70})


@pytest.mark.parametrize(
    ("volume", "path", "base"),
    [
        (None, "tables/sales/orders/metadata/7.metadata.json", "s3://lake"),
        ("s3://lake/tables", "sales/orders/metadata/7.metadata.json", "s3://lake/tables"),
        ("s3a://lake/tables/", "sales/orders/metadata/7.metadata.json", "s3a://lake/tables"),
    ],
)
def test_the_metadata_file_is_named_from_the_volume_on(
    settings: LakeSettings, volume: str | None, path: str, base: str
) -> None:
    state = get_published_state(among(**ICEBERG), volume, settings)
    assert (state.path, state.volume_location) == (path, base)


def test_a_delta_table_at_its_newest_version_is_named_by_its_folder(settings: LakeSettings) -> None:
    assert get_published_state(among(**DELTA), "s3://lake", settings).path == "tables/sales/daily"


@pytest.mark.parametrize(
    ("different", "volume", "said"),
    [
        ({"metadata_location": "file:///lake/o/metadata/7.metadata.json"}, None, "on a local disk"),
        ({"metadata_location": "/lake/o/metadata/7.metadata.json"}, None, "on a local disk"),
        ({"metadata_location": None}, None, "names no metadata file"),
        ({}, "s3://other", "not below the volume's location s3://other"),
        ({}, "s3://lake/tables/sales/ord", "not below the volume's location"),
        ({}, "gs://lake/tables", "not below the volume's location"),
        ({"snapshot_id": 60}, None, "is snapshot 60, but Snowflake would read snapshot 70"),
        ({"metadata_location": METADATA.replace("/7.", "/none.")}, None, "would read snapshot None"),
    ],
)
def test_what_snowflake_would_not_show_is_refused(
    settings: LakeSettings, different: dict[str, object], volume: str | None, said: str
) -> None:
    with pytest.raises(SnowflakeError, match=said) as refusal:
        get_published_state(among(**{**ICEBERG, **different}), volume, settings)
    assert refusal.value.fix


def test_a_delta_table_that_has_moved_on_is_refused(settings: LakeSettings) -> None:
    with pytest.raises(SnowflakeError, match="is Delta version 1, but Snowflake would read version 2"):
        get_published_state(among(**{**DELTA, "delta_version": 1}), None, settings)


def test_an_unpublished_commit_of_a_delta_table_is_seen(settings: LakeSettings, tmp_path: Path) -> None:
    table = a_delta_table(tmp_path / "daily")
    publication = among(format="delta", location=str(table), delta_version=0)
    require_readable(publication, settings)
    append_delta(table, some_rows(days=1))
    with pytest.raises(SnowflakeError, match="would read version 1"):
        require_readable(publication, settings)


def test_snapshots_that_were_never_published_are_refused_by_id_and_by_name(settings: LakeSettings) -> None:
    for name, said in (
        ("hidden", "lists 2 snapshots that were never published (65, 66, by the names audit)"),
        ("branch", "lists 1 snapshots that were never published (65, by the names stray)"),
    ):
        hidden = among(**{**ICEBERG, "metadata_location": METADATA.replace("/7.", f"/{name}.")})
        with pytest.raises(SnowflakeError, match=re.escape(said)) as refusal:
            get_published_state(hidden, None, settings)
        assert "expire_snapshots" in refusal.value.fix


@pytest.mark.parametrize(
    ("name", "error"), [("cut", TableFilesMissing), ("list", TableFilesMissing), ("gone", StoreMissing)]
)
def test_metadata_that_cannot_be_read_is_an_error_of_the_store(
    settings: LakeSettings, name: str, error: type[Exception]
) -> None:
    location = METADATA.replace("/7.", f"/{name}.")
    with pytest.raises(error):
        get_published_state(among(**{**ICEBERG, "metadata_location": location}), None, settings)


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[object, str]:
    monkeypatch.setattr("sys.argv", ["lakeshare", "snowflake", "ddl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return ended.value.code, said.out + said.err


def test_the_command_prints_the_newest_publication_or_the_one_asked_for(
    settings: LakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(open_migrated(settings.catalog_url))
    older = {**ICEBERG, "metadata_location": METADATA.replace("/7.", "/6."), "snapshot_id": 60}
    ledger.append([a_publication(**older)])
    ledger.append([a_publication(**ICEBERG)])
    words = ["sales.orders", "--external-volume", "v", "--catalog-integration", "c"]

    code, text = run(monkeypatch, capsys, *words, "--volume-location", "s3://lake/tables")
    assert code == 0
    assert "-- Publication 1 of sales.orders." in text
    assert 'CREATE ICEBERG TABLE IF NOT EXISTS "ORDERS"' in text
    assert "REFRESH 'sales/orders/metadata/7.metadata.json';" in text

    monkeypatch.setenv("LAKESHARE_SNOWFLAKE_EXTERNAL_VOLUME", "from_settings")
    where = ["--database", "lake", "--schema", "s", "--name", "o", "--with-integrations"]
    code, text = run(
        monkeypatch, capsys, "sales.orders", "--catalog-integration", "c", "--version", "0", *where
    )
    assert code == 0
    assert 'CREATE EXTERNAL VOLUME IF NOT EXISTS "FROM_SETTINGS"' in text
    assert (
        'ALTER ICEBERG TABLE "LAKE"."S"."O" REFRESH \'tables/sales/orders/metadata/6.metadata.json\';' in text
    )


def test_a_table_that_is_followed_no_more_is_published_no_more(
    settings: LakeSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = open_migrated(settings.catalog_url)
    FollowedTables(catalog).add("sales.daily", "s3://lake/tables/sales/daily", 0.0, 0)
    Ledger(catalog).append([a_publication(**DELTA, audited=False)])
    code, text = run(monkeypatch, capsys, "sales.daily", *BOTH)
    assert code == 0
    assert "-- Publication 2 of sales.daily, unaudited: followed in storage." in text
    FollowedTables(catalog).remove("sales.daily")
    code, text = run(monkeypatch, capsys, "sales.daily", *BOTH)
    assert code == 1
    assert "sales.daily" in text


BOTH = ["--external-volume", "v", "--catalog-integration", "c"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no.table", *BOTH], "Published are: sales.orders"),
        (["sales.orders", *BOTH, "--version", "9"], "no publication 9"),
        (["sales.orders", *BOTH[2:]], "LAKESHARE_SNOWFLAKE_EXTERNAL_VOLUME"),
        (["sales.orders", *BOTH[:2]], "LAKESHARE_SNOWFLAKE_ICEBERG_INTEGRATION"),
        (["sales.orders", *BOTH, "--database", "d"], "schema"),
        (["sales.orders", *BOTH[:2], "--catalog-integration", "a\nb"], "catalog integration"),
        (["sales.orders", *BOTH, "--volume-location", "lake"], "location"),
    ],
)
def test_the_command_refuses_in_a_sentence(
    settings: LakeSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    ledger = Ledger(open_migrated(settings.catalog_url))
    for number in (60, 70):
        ledger.append([a_publication(**{**ICEBERG, "snapshot_id": number})])
    code, text = run(monkeypatch, capsys, *words)
    assert (code, text.startswith("lakeshare: ")) == (1, True)
    assert said in text
    assert "CREATE" not in text
