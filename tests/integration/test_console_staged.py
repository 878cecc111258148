"""The console's page of a set that a real audit refused: what it shows is masked, and discarding removes the branch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.staged import Lake, list_attempts
from lakeshare_server.catalog import Catalog
from lakeshare_server.catalog.credentials import add_admin_key
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.settings import ServerSettings
from tests.builders.console import Browser, open_browser
from tests.builders.sets import a_contract, a_delivery, orders, staged_without_reading
from tests.builders.sharing import Provider, a_server

SET, DAY = "console", "2024-01-01"
EMAIL = "- {name: email, logicalType: string, classification: pii}"
QUALITY = """- name: email
        logicalType: string
        classification: pii
        quality:
          - name: email_short
            type: custom
            engine: greatExpectations
            implementation: {type: expect_column_value_lengths_to_be_between, kwargs: {column: email, max_value: 5}}"""


@pytest.fixture
def console(
    lake: Lake, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Browser]:
    monkeypatch.setenv("LAKESHARE_CONTRACTS_DIR", str(tmp_path / "contracts"))
    provider = Provider(ServerSettings(state_dir=lake.settings.state_dir, port=0), catalog)
    with editing(catalog, "tests") as edit:
        _, key = add_admin_key(edit, "console-steward", "steward")
    with a_server(provider) as running:
        yield open_browser(running.url.removesuffix(provider.settings.endpoint), key)


def test_a_refused_set_is_shown_masked_and_discarded(console: Browser, lake: Lake, tmp_path: Path) -> None:
    contract = a_contract(tmp_path / "contracts", SET, "iceberg", **{EMAIL: QUALITY})
    a_delivery(lake.settings, contract, DAY, orders(DAY))
    staged = staged_without_reading(lake, contract, DAY, orders(DAY))
    assert not audit_and_save(lake, contract, staged).green

    listed, page = console.page("/console/quality"), console.page(f"/console/quality/{staged.ref}")

    assert f"/console/quality/{staged.ref}" in listed
    assert f"{SET}.orders: email_short" in listed
    assert page.count("<td>***</td>") == 3
    assert "<td>2024010100</td>" in page
    assert "example.org" not in page
    console.send(f"/console/quality/{staged.ref}", f"/console/quality/{staged.ref}/discard")
    assert staged.ref not in console.page("/console/quality")
    assert staged.ref not in {branch.name for branch in lake.nessie().branches()}
    assert staged.ref not in {attempt.staged.ref for attempt in list_attempts(lake)}
