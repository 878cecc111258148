"""A server beside pipelines with staged sets, made without Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.contracts.loader import load_contract
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.checks import SHOW_REJECTED, mask_rows
from lakeshare_pipelines.wap.stage import staging_for
from lakeshare_pipelines.wap.staged import (
    Lake,
    Staged,
    Verdict,
    Verdicts,
    open_lake_without_spark,
    record_begin,
    save_attempt,
)
from tests.builders.administration import Administered, an_administered_server
from tests.builders.lake_tables import a_delta_table
from tests.builders.sets import a_contract, a_delivery, orders, staged_without_reading

MARKUP = "<script>alert(1)</script>"


@dataclass(frozen=True)
class Scene:
    """A server with a red staged set of the contract `shop`, in Delta, and an unfinished one."""

    administered: Administered
    lake: Lake
    contract: SetContract
    red: Staged
    unfinished: str


@contextmanager
def a_scene(
    folder: Path, patch: pytest.MonkeyPatch, *, more_contract: str = "", **settings: object
) -> Iterator[Scene]:
    patch.setenv("LAKESHARE_CONTRACTS_DIR", str(folder / "contracts"))
    path = a_contract(folder / "contracts", "shop", "delta").path
    path.write_text(path.read_text() + more_contract)
    contract = load_contract(path)
    lake = open_lake_without_spark(LakeSettings(_env_file=None, state_dir=folder / "state"))
    rows = [row | {"customer": MARKUP} for row in orders("2024-01-01")]
    a_delivery(lake.settings, contract, "2024-01-01", rows)
    red = staged_without_reading(lake, contract, "2024-01-01", rows)
    save_attempt(lake, red, red_verdicts(contract, red, rows))
    unfinished = "wap-shop-2024-01-02-0badc0de"
    record_begin(lake, unfinished)
    location = staging_for(lake, contract).staged_location("shop.orders", unfinished)  # type: ignore[attr-defined]
    a_delta_table(Path(location))
    with an_administered_server(folder, **settings) as running:
        yield Scene(running, lake, contract, red, unfinished)


def red_verdicts(contract: SetContract, staged: Staged, rows: list[dict[str, object]]) -> Verdicts:
    """Verdicts as an audit writes them, with a blocking failure, a warning, and a passed check."""
    table = contract.table("shop.orders")
    samples = mask_rows(table, rows, ["id", "customer", "email"])
    observed = {"reason": f"3 rows are odd {MARKUP}", "failed_rows": 3, "expected": "at most 0"}
    rejected = {"reason": "2 rows did not parse", SHOW_REJECTED: "lakeshare quarantine show shop --run x"}
    verdicts = (
        Verdict("shop.orders", "odd", "error", False, "No row is odd.", observed, samples),
        Verdict("shop.orders", "rows_parsed", "warning", False, "Rows are parsed.", rejected),
        Verdict("shop.totals", "not_empty", "error", True, "It has rows."),
    )
    return Verdicts(staged.ref, staged.head, verdicts, contract.digest)
