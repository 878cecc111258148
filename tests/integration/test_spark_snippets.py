"""Spark reads a shared Iceberg table by the snippet as it is printed, in a session that is there already.

The package of Spark's Delta Sharing source is not to be had here: that snippet is compared, not run.
"""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.cli import main
from tests.builders.lake_tables import an_iceberg_table, some_rows
from tests.builders.sharing import Provider, a_provider, a_server

TABLE = "spark_snippets.lake.flights"


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider = a_provider(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    monkeypatch.chdir(tmp_path)
    provider.publish_iceberg("lake.flights", an_iceberg_table(tmp_path / "table").state())
    provider.share("lake.flights", share="spark_snippets")
    return provider


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr("sys.argv", ["lakeshare", "snippet", TABLE, "--engine", "spark", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    return said.out


def test_spark_reads_by_the_printed_snippet(
    lake: Lake, provider: Provider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lake.spark  # the snippet's getOrCreate takes this one, which has the packages
    token = provider.recipient(shares=("spark_snippets",))
    with a_server(provider) as server:
        profile = {"bearerToken": token, "icebergEndpoint": server.url.replace("/delta-sharing", "/iceberg")}
        Path("recipient.share").write_text(json.dumps(profile))
        text = printed(monkeypatch, capsys, "--api", "iceberg")
        names: dict[str, Any] = {}
        try:
            exec(compile(text, "spark.py", "exec"), names)
            read = {(row.distance, row.carrier) for row in names["frame"].collect()}
        finally:
            # What no running session takes, like its packages, it has not taken.
            for name in (name for name in names.get("conf", ()) if name.startswith("spark.sql.")):
                lake.spark.conf.unset(name)
    source = some_rows()
    assert read == set(zip(source["distance"].to_pylist(), source["carrier"].to_pylist(), strict=True))


def test_the_snippet_for_delta_sharing_names_the_source_and_the_profile(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(monkeypatch, capsys, "--profile", "bob.share")
    texts = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    assert {"deltaSharing", f"bob.share#{TABLE}"} <= set(texts)
