"""Rejected rows are exported as delivered, corrected and delivered again; the next run publishes all rows."""

import gzip
import stat
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner, Result

from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.redelivery import Redelivery, export_rejected, list_quarantined, redeliver
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, open_catalog
from lakeshare_server.errors import BadRequest
from tests.builders.sets import a_contract

DAY = "2024-01-01"
HEADER = "day,id,customer,email,amount"
# Bad are the lines 3, 5 (a blank line is counted too) and, in the compressed file, 2.
PLAIN = f"{HEADER}\r\n{DAY},1,a,,1.5\r\n{DAY},two,b,,2.5\r\n\r\n{DAY},3,c\r\n{DAY},4,d,,4.5"
COMPRESSED = f"{HEADER}\n{DAY},5,Ω,,a lot\n{DAY},6,f,,6.5\n"


@pytest.fixture
def contract(lake: Lake, tmp_path: Path) -> SetContract:
    return a_contract(tmp_path, f"corrected_{uuid4().hex[:8]}", "delta", **{"value: 0.5": "value: 0.0"})


@pytest.fixture
def catalog(lake: Lake) -> Catalog:
    return open_catalog(lake.settings.catalog_url)


def deliver(lake: Lake, contract: SetContract, files: dict[str, bytes]) -> Path:
    folder = Path(lake.settings.landing_root) / contract.name / DAY
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "_SUCCESS").touch()
    return folder


def test_rejected_lines_are_corrected_and_published(lake, catalog, contract, tmp_path, monkeypatch):
    landed = deliver(
        lake,
        contract,
        {"orders-1.csv": PLAIN.encode(), "orders-2.csv.gz": gzip.compress(COMPRESSED.encode())},
    )
    assert stage(lake, contract, [DAY], "run1").find_table(f"{contract.name}.orders").rejected == 3
    found = [(file.run_id, file.file, file.rows) for file in list_quarantined(lake.settings, contract.name)]
    assert sorted(found) == [("run1", f"{DAY}/orders-1.csv", 2), ("run1", f"{DAY}/orders-2.csv.gz", 1)]

    folder = tmp_path / "all corrections"
    first, second = export_by_command(lake, contract, folder, monkeypatch)

    assert first.read_bytes() == f"{HEADER}\r\n{DAY},two,b,,2.5\r\n{DAY},3,c\r\n".encode()
    assert second.name == "orders-2.csv"
    assert second.read_text() == f"{HEADER}\n{DAY},5,Ω,,a lot\n"
    assert "line 3: id: 'two' is not int\n" in (first.parent / "orders-1.csv.reasons.txt").read_text()
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    with pytest.raises(BadRequest, match=r"--to: .*orders-1\.csv exists: give another folder"):
        export_rejected(lake.settings, catalog, contract, "run1", folder)

    before = {path.name: path.read_bytes() for path in landed.iterdir()}
    first.write_text(f"{DAY},2,b,,2.5\n")
    with pytest.raises(BadRequest, match=rf"--from: .* must be the header of the delivery: {HEADER}"):
        redeliver(lake.settings, catalog, contract, "run1", folder)
    first.write_text(f"{HEADER}\n{DAY},2,b,,2.5")
    second.rename(tmp_path / "aside")
    with pytest.raises(BadRequest, match=rf"--from: .*lacks the lines of {DAY}/orders-2\.csv\.gz"):
        redeliver(lake.settings, catalog, contract, "run1", folder)
    assert {path.name: path.read_bytes() for path in landed.iterdir()} == before

    second.write_text(f"{HEADER}\n{DAY},5,Ω,,5.5\n")
    assert redeliver(lake.settings, catalog, contract, "run1", folder) == [Redelivery(DAY, 3, 2)]

    corrected = f"{HEADER}\r\n{DAY},1,a,,1.5\r\n\r\n{DAY},4,d,,4.5\n{DAY},2,b,,2.5\n"
    assert (landed / "orders-1.csv").read_bytes() == corrected.encode()
    staged = stage(lake, contract, [DAY], "run2")
    verdicts = audit_and_save(lake, contract, staged)
    assert verdicts.green
    publications = publish_or_replay(lake, catalog, contract, staged, verdicts)
    assert {publication.table.split(".")[1]: publication.rows for publication in publications} == {
        "orders": 5,
        "totals": 1,
    }
    rows = lake.spark.read.format("delta").load(publications[0].location).orderBy("id").collect()
    assert [(row.id, row.customer, row.amount) for row in rows] == [
        (1, "a", 1.5), (2, "b", 2.5), (4, "d", 4.5), (5, "Ω", 5.5), (6, "f", 6.5),
    ]  # fmt: skip
    with pytest.raises(DeliveryError, match=r"is not the delivery that run run1 read"):
        redeliver(lake.settings, catalog, contract, "run1", folder)


def export_by_command(
    lake: Lake, contract: SetContract, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Path]:
    """Lists and exports rejected lines; returns the files that the command prints."""
    monkeypatch.setattr("lakeshare_pipelines.cli.quarantine.load_settings", lambda: lake.settings)
    monkeypatch.setattr("lakeshare_pipelines.cli.quarantine.find_contract", lambda _: contract)

    def run_command(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["quarantine", arguments[0], contract.name, *arguments[1:]])

    listed = run_command("list").output
    assert f"run1  {contract.name}.orders  {DAY}/orders-1.csv  2 rows  " in listed
    with monkeypatch.context() as patch:
        patch.setattr("lakeshare_pipelines.wap.redelivery.MAX_DELIVERY_BYTES", 10)
        refused = run_command("export", "--run", "run1", "--to", str(folder))
    assert isinstance(refused.exception, DeliveryError)
    assert "is larger than" in str(refused.exception)
    assert not folder.exists()
    *files, last = run_command("export", "--run", "run1", "--to", str(folder)).output.splitlines()
    assert last.endswith(f"lakeshare quarantine redeliver {contract.name} --run run1 --from '{folder}'")
    return [Path(file) for file in files]


def test_rows_that_are_not_lines_or_of_no_run_are_refused(lake, catalog, contract, tmp_path):
    lines = [f'{{"day": "{DAY}", "id": {number}, "customer": "a", "amount": 1}}' for number in (1, '"x"')]
    landed = deliver(lake, contract, {"orders.jsonl": "\n".join(lines).encode()})
    stage(lake, contract, [DAY], "run1")
    [exported] = export_rejected(lake.settings, catalog, contract, "run1", tmp_path / "lines")
    assert exported.read_text() == lines[1] + "\n"
    exported.write_text("")
    assert redeliver(lake.settings, catalog, contract, "run1", tmp_path / "lines") == [Redelivery(DAY, 1, 0)]
    assert (landed / "orders.jsonl").read_text() == lines[0] + "\n"
    with pytest.raises(BadRequest, match=r"--run: 'run3'.* no rejected rows"):
        export_rejected(lake.settings, catalog, contract, "run3", tmp_path / "other")

    (landed / "orders.jsonl").unlink()
    lake.spark.sql(
        "SELECT DATE'2024-01-02' day, 1 id, 'a' customer, '' email, 1D amount"
    ).toPandas().to_parquet(landed / "orders.parquet")
    stage(lake, contract, [DAY], "run2")
    with pytest.raises(
        DeliveryError, match=r"cannot be corrected as lines: it has Parquet\. Correct them where"
    ):
        export_rejected(lake.settings, catalog, contract, "run2", tmp_path / "other")
    assert not (tmp_path / "other").exists()
