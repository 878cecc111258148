"""A contract is compared with the published one: small changes pass, breaking ones need a new version and table."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.evolution import find_evolution, require_allowed_changes, require_version
from lakeshare_server.catalog import Ledger, RecordedContract, open_catalog
from tests.builders.publications import a_publication
from tests.builders.sets import a_contract

EMAIL = "{name: email, logicalType: string, classification: pii}"
NOTE = f"{EMAIL}\n      - {{name: note, logicalType: string}}"
DROPPED = {f"      - {EMAIL}\n": ""}
MAJOR = {"version: 1.0.0": "version: 2.0.0"}
NEW_TABLE = {
    "name: orders\n": "name: orders_v2\n",
    "physicalName: shop.orders\n": "physicalName: shop.orders_v2\n",
    "FROM {orders}": "FROM {orders_v2}",
    "tables: [orders, totals]": "tables: [orders_v2, totals]",
}
RETIRE = "  - {property: retire, value: [{table: orders, date: 2999-01-31, successor: orders_v2}]}"
Make = Callable[..., SetContract]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes the contract of the set, with texts replaced; always to the same file."""

    def made(
        replaced: dict[str, str] | None = None, more: str = "", table_format: str = "iceberg"
    ) -> SetContract:
        return a_contract(tmp_path / "contracts", "shop", table_format, more, **(replaced or {}))

    return made


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    catalog = open_catalog(LakeSettings(_env_file=None, state_dir=tmp_path).catalog_url)
    yield Ledger(catalog)
    catalog.close()


def publish(ledger: Ledger, contract: SetContract, **fields: object) -> None:
    """Records a contract and a publication of each of its tables, as a run does."""
    ledger.record_contract(RecordedContract(contract.digest, contract.name, contract.version, contract.text))
    ledger.append(
        [
            a_publication(table=table.name, set_name=contract.name, contract_digest=contract.digest, **fields)
            for table in contract.tables
        ]
    )


def refuse(ledger: Ledger, contract: SetContract) -> ContractError:
    with pytest.raises(ContractError) as refused:
        require_allowed_changes(ledger, contract)
    return refused.value


def test_small_changes_pass_and_check_requires_their_version(make: Make, ledger: Ledger) -> None:
    require_allowed_changes(ledger, make(DROPPED))  # nothing is published
    publish(ledger, make())

    for changes, version in (
        ({EMAIL: NOTE}, "1.1.0"),
        ({"physicalType: int,": "physicalType: bigint,"}, "1.1.0"),
        ({"One row per order.": "Orders."}, "1.0.1"),
    ):
        contract = make(changes)
        require_allowed_changes(ledger, contract)
        evolution = find_evolution(ledger, contract)
        assert evolution is not None
        with pytest.raises(ContractError, match=f"1.0.0 is too low .*Give it {version} or higher") as refused:
            require_version(evolution)
        assert (refused.value.field, refused.value.line) == ("set shop: version", 5)
        higher = find_evolution(ledger, make({**changes, "version: 1.0.0": f"version: {version}"}))
        assert higher is not None
        require_version(higher)


def test_a_breaking_change_without_a_new_major_version_names_field_file_and_remedy(
    make: Make, ledger: Ledger
) -> None:
    publish(ledger, make())
    contract = make({**DROPPED, "version: 1.0.0": "version: 1.9.0"})

    error = refuse(ledger, contract)

    assert (error.path, error.field) == (contract.path, "set shop: shop.orders.email")
    assert error.problem == ("the column is gone, and 1.9.0 is no new major version of the published 1.0.0")
    assert (
        "give the contract version 2.0.0 and the table another name: physicalName: shop.orders_v2"
        in error.hint
    )
    assert "{table: shop.orders, date: YYYY-MM-DD, successor: orders_v2}" in error.hint
    # Rows that other writers published, or that repeat older ones, change nothing of what is published.
    publish(ledger, contract, rollback_of=0)
    assert refuse(ledger, contract).problem == error.problem


def test_each_breaking_change_is_an_error_of_its_own(make: Make, ledger: Ledger) -> None:
    publish(ledger, make())
    stricter = {"customer, logicalType: string,": "customer, logicalType: string, unique: true,"}
    error = refuse(ledger, make(DROPPED | stricter))
    assert {each.field for each in (error, *error.also)} == {
        "set shop: shop.orders.email",
        "set shop: shop.orders.customer",
    }
    [strict] = [each for each in (error, *error.also) if each.field.endswith("customer")]
    # Only deliveries have to change: the table goes on.
    assert strict.hint.startswith("Undo the change, or give the contract version 2.0.0. See")


def test_a_new_major_version_needs_a_new_table_and_a_last_day_of_the_old_one(
    make: Make, ledger: Ledger
) -> None:
    publish(ledger, make())

    same_name = refuse(ledger, make(DROPPED | MAJOR))
    assert same_name.field == "set shop: shop.orders.email"
    assert "physicalName: shop.orders_v2" in same_name.hint
    no_date = refuse(ledger, make(DROPPED | MAJOR | NEW_TABLE))
    assert no_date.field == "set shop: retire"
    assert "shop.orders: the table is published and shared" in no_date.problem
    assert "{property: retire, value: [{table: shop.orders, date: YYYY-MM-DD}]}" in no_date.hint

    over = refuse(ledger, make(DROPPED | MAJOR | NEW_TABLE, RETIRE.replace("2999", "1999")))
    assert over.problem.endswith("its last day, 1999-01-31, is over")

    second = make(DROPPED | MAJOR | NEW_TABLE, RETIRE)
    require_allowed_changes(ledger, second)
    publish(ledger, second)
    # The promised day is part of the contract from then on.
    earlier = make(DROPPED | MAJOR | NEW_TABLE, RETIRE.replace("2999-01-31", "2998-12-31"))
    assert "retired on 2999-01-31 → 2998-12-31" in refuse(ledger, earlier).problem
    dropped = refuse(ledger, make(DROPPED | MAJOR | NEW_TABLE))
    assert "it was to be shared until 2999-01-31" in dropped.problem
    require_allowed_changes(ledger, make(DROPPED | MAJOR | NEW_TABLE, RETIRE.replace("01-31", "02-28")))


def test_what_only_deliveries_feel_and_what_is_allowed_goes_on_in_the_same_table(
    make: Make, ledger: Ledger
) -> None:
    publish(ledger, make())

    require_allowed_changes(
        ledger, make({EMAIL: EMAIL.replace("string,", "string, required: true,")} | MAJOR)
    )
    # A table that stays can be taken out of a share at once.
    require_allowed_changes(ledger, make({"tables: [orders, totals]": "tables: [totals]"} | MAJOR))
    allowed = {"{property: maxQ": "{property: allowSchemaChanges, value: true}\n      - {property: maxQ"}
    require_allowed_changes(ledger, make(DROPPED | MAJOR | allowed))


def test_a_wider_type_of_a_delta_table_is_breaking(make: Make, ledger: Ledger) -> None:
    publish(ledger, make(table_format="delta"), format="delta", delta_version=0)
    error = refuse(ledger, make({"physicalType: int,": "physicalType: bigint,"}, table_format="delta"))
    assert error.problem.startswith("type int → bigint")


def test_versions_of_other_forms_follow_each_other_and_unknown_contracts_are_not_compared(
    make: Make, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    publish(ledger, make({"version: 1.0.0": "version: summer"}))
    require_allowed_changes(ledger, make(DROPPED | NEW_TABLE, RETIRE))
    # A contract that an older lakeshare published is not recorded.
    publish(ledger, replace(make(), text=""), run_id="older")
    ledger.append([a_publication(table="shop.x", set_name="shop", contract_digest="of another time")])
    assert find_evolution(ledger, make(DROPPED)) is None
    # One that this lakeshare refuses is reported, and stops nothing.
    foreign = RecordedContract("f" * 64, "shop", "0.9.0", "kind: Unknown")
    ledger.record_contract(foreign)
    ledger.append([a_publication(table="shop.y", set_name="shop", contract_digest=foreign.digest)])
    assert find_evolution(ledger, make(DROPPED)) is None
    assert "version 0.9.0, was written for another lakeshare" in caplog.text


def test_the_command_compares_with_what_is_published(
    make: Make, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = make()
    monkeypatch.setenv("LAKESHARE_CONTRACTS_DIR", str(contract.path.parent))
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "none"))
    check = ["contract", "check", str(contract.path)]
    assert CliRunner().invoke(app, check).output == "ok  shop 1.0.0 (shop.yaml): shop.orders, shop.totals\n"
    assert not (tmp_path / "none").exists()

    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path))
    publish(ledger, contract)
    make({EMAIL: NOTE, "version: 1.0.0": "version: 1.1.0"})
    for arguments in (check, ["contract", "check"]):
        ended = CliRunner().invoke(app, arguments)
        assert ended.exit_code == 0, ended.output
        assert "1.0.0 is published; changes since: 1" in ended.output
        assert "minor     shop.orders.note: new column, string" in ended.output
    with monkeypatch.context() as patch:
        # A check by another version changes nothing.
        patch.setattr("lakeshare_server.catalog.database.HEAD", "9999")
        ended = CliRunner().invoke(app, check)
        assert "the catalog is at revision 00" in str(ended.exception)
    show = ["contract", "show", "shop", "--published"]
    assert CliRunner().invoke(app, show).output == contract.text
    ended = CliRunner().invoke(app, ["contract", "show", "none", "--published"])
    assert "SET" in str(ended.exception)
    assert "run it once" in str(ended.exception)
    make({EMAIL: NOTE})
    ended = CliRunner().invoke(app, check)
    assert isinstance(ended.exception, ContractError)
    assert "Give it 1.1.0 or higher" in str(ended.exception)


def test_a_delivery_is_not_taken_for_a_contract_that_is_refused(
    make: Make, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(ledger, make())
    monkeypatch.setenv("LAKESHARE_CONTRACTS_DIR", str(make(DROPPED).path.parent))
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("LAKESHARE_LANDING", str(tmp_path / "landing"))
    file = tmp_path / "orders.csv"
    file.write_text("day,id\n")

    ended = CliRunner().invoke(app, ["publish", "shop", "--on", str(file), "--partition", "2024-01-01"])

    assert isinstance(ended.exception, ContractError)
    assert "set shop: shop.orders.email: the column is gone" in str(ended.exception)
    assert not (tmp_path / "landing").exists()
