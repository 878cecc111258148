"""The matrix of clients says of each what a request of it would be answered, for both formats of tables."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from lakeshare_server.cli.tables import table_app
from lakeshare_server.errors import BadRequest, Unserveable
from lakeshare_server.protocol.lines import Capabilities, negotiate_format
from lakeshare_server.tables.serveability import (
    CLIENTS,
    ReasonCode,
    clients_of,
    directory_verdict,
    judge_serveability,
)
from lakeshare_server.tables.snapshot import Hindrance, TableHead
from tests.builders.lake_tables import an_iceberg_table, some_rows
from tests.builders.sharing import Provider, a_provider, a_provider_of_flights

FEATURES = ("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "variantType")


def a_head(*hindrances: Hindrance) -> TableHead:
    return TableHead(
        table_id="id",
        schema_string='{"type":"struct","fields":[]}',
        partition_columns=(),
        hindrances=hindrances,
    )


def hindered_by(*features: str | None) -> TableHead:
    return a_head(*(Hindrance(one, f"has {one}", "Do without.", f"CODE_{one}") for one in features))


@pytest.mark.parametrize("needs", [(), (None,), *((one,) for one in FEATURES), FEATURES])
def test_a_verdict_is_what_a_request_of_that_client_gets(needs: tuple[str | None, ...]) -> None:
    head = hindered_by(*needs)
    for client, verdict in zip(CLIENTS, judge_serveability("delta", head), strict=False):
        wants = Capabilities(frozenset({client.response_format}), client.features)
        if verdict.served_as is not None:
            assert negotiate_format(wants, head, "t") == verdict.served_as
            continue
        with pytest.raises(Unserveable) as refused:
            negotiate_format(wants, head, "t")
        assert refused.value.code == verdict.code
        assert str(refused.value).endswith(f"[{verdict.code}]")


def test_a_table_that_needs_features_is_for_the_clients_that_have_them() -> None:
    verdicts = judge_serveability("iceberg", hindered_by("columnMapping", "typeWidening"))
    assert [(one.served_as, one.code) for one in verdicts] == [
        (None, "CODE_columnMapping"),
        (None, "CODE_typeWidening"),
        ("delta", None),
        ("iceberg", None),
    ]
    assert str(verdicts[2]) == "yes, as delta, needs columnMapping, typeWidening"


def test_all_reasons_of_a_client_are_told_the_one_of_its_requests_first() -> None:
    parquet, *_ = judge_serveability("delta", hindered_by("columnMapping", None, "typeWidening"))
    told = [one["code"] for one in parquet.as_json()["refused_for"]]
    assert told == ["CODE_columnMapping", "CODE_None", "CODE_typeWidening"]
    assert parquet.code == parquet.as_json()["code"] == told[0]


def test_every_id_of_a_client_is_in_the_reference() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/serveability.md").read_text()
    ids = [one.id for one in [*judge_serveability("iceberg", a_head()), directory_verdict("s.s.t", None)]]
    assert [id_ for id_ in ids if f"| `{id_}` |" not in page] == []


def test_every_code_has_a_sentence_and_a_fix() -> None:
    for code in ReasonCode:
        assert code.name == code.value == str(code)
        assert code.sentence.endswith(".")
        assert code.fix.endswith(".")


def test_every_code_is_in_the_reference() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/serveability.md").read_text()
    for code in ReasonCode:
        assert any(
            line.startswith(f"| `{code}` |") and f"| {code.sentence} | {code.fix} |" in line
            for line in page.splitlines()
        ), code


def test_a_code_survives_the_index() -> None:
    head = a_head(Hindrance("f", "r", "x", ReasonCode.WIDENED_TYPES), Hindrance(None, "r", "x"))
    again = TableHead.from_json(json.loads(json.dumps(head.as_json())))
    assert [one.code for one in again.hindrances] == ["WIDENED_TYPES", None]


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider = a_provider(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    monkeypatch.chdir(tmp_path)
    return provider


def told(*arguments: str) -> list[dict[str, Any]]:
    ended = CliRunner().invoke(table_app, ["serveability", *arguments, "--json"], catch_exceptions=False)
    found: list[dict[str, Any]] = json.loads(ended.output)
    return found


def test_the_command_tells_of_an_iceberg_table(provider: Provider, tmp_path: Path) -> None:
    rows = some_rows().append_column("at", pa.nulls(12, pa.timestamp("us")))
    table = an_iceberg_table(tmp_path / "warehouse", rows)
    provider.publish_iceberg("lake.flights", table.state())
    provider.share("lake.flights")
    found = {one["client"]: one for one in told("lake.flights")}
    assert {name: one["served_as"] for name, one in found.items()} == {
        "Python, parquet format": None,
        "Python, delta format": "delta",
        "Spark, delta format": "delta",
        "Iceberg REST": "iceberg",
        "directory access to flights.lake.flights": None,
    }
    assert found["Python, parquet format"]["code"] == "TIMESTAMPS_WITHOUT_ZONE"
    assert found["Python, delta format"]["features"] == ["timestampNtz"]
    assert [one["id"] for one in found.values()] == [*clients_of("iceberg"), "directory"]
    [why] = found["Python, parquet format"]["refused_for"]
    assert why == {key: found["Python, parquet format"][key] for key in ("code", "reason", "fix")}
    assert found["Python, delta format"]["refused_for"] == []
    assert told("flights.lake.flights") == list(found.values())
    said = CliRunner().invoke(table_app, ["serveability", "lake.flights"], catch_exceptions=False).output
    assert "Python, delta format\tyes, as delta, needs timestampNtz" in said.splitlines()
    assert "[TIMESTAMPS_WITHOUT_ZONE]" in said


def test_the_command_tells_of_a_delta_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = a_provider_of_flights(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    monkeypatch.chdir(tmp_path)
    assert [one["served_as"] for one in told("lake.flights")] == ["parquet", "delta", "delta", None, None]


def test_a_table_that_nobody_knows_is_named_with_those_that_are_shared(provider: Provider) -> None:
    provider.share("lake.flights")
    with pytest.raises(BadRequest, match=r"NAME: 'lake\.nothing' .* Shared are: lake\.flights"):
        CliRunner().invoke(table_app, ["serveability", "lake.nothing"], catch_exceptions=False)
