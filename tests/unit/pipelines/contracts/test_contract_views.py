"""A contract declares views of its tables in few words; what could show more than is meant is refused by its place."""

from pathlib import Path
from typing import Any

import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.contracts.model import View, describe
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.share.shares import declared_shares
from lakeshare_pipelines.wap.checks import list_checks
from tests.builders.sets import a_contract

VIEW = """\
  - name: open_orders
    physicalName: shop.open_orders
    customProperties:
      - property: view
        value: {of: orders, columns: [day, id, amount], where: amount > 3}
      - {property: drift, value: {maxShrinkFraction: 0.5}}
"""
TOP = "customProperties:\n  - {property: partitioning"
SHARED = "tables: [orders, totals]"


def a_set(folder: Path, view: str = VIEW, table_format: str = "iceberg", **more: str) -> SetContract:
    """The orders of other tests with one more table."""
    shared = SHARED.replace("totals", "totals, open_orders")
    return a_contract(folder, "shop", table_format, **{TOP: view + TOP, SHARED: shared, **more})


def per(value: str) -> str:
    """The view with a value per recipient."""
    return VIEW.replace("where: amount > 3", f"perRecipient: {value}")


def test_a_view_has_what_its_table_knows_of_its_columns(tmp_path: Path) -> None:
    contract = a_set(tmp_path)
    view, orders = contract.table("open_orders"), contract.table("orders")

    assert view.view == View("shop.orders", ("day", "id", "amount"), "amount > 3")
    assert view.depends_on == ("shop.orders",)
    assert [(c.name, c.type, c.required) for c in view.columns] == [
        (name, orders.column(name).type, orders.column(name).required) for name in ("day", "id", "amount")
    ]
    assert (view.partition_by, view.primary_key) == (orders.partition_by, ("id",))
    assert [column.lineage for column in view.columns] == [
        ("orders.day",),
        ("orders.id",),
        ("orders.amount",),
    ]


def test_a_view_is_checked_as_a_selection_and_may_be_empty(tmp_path: Path) -> None:
    names = [spec.name for spec in list_checks(a_set(tmp_path)) if spec.table == "shop.open_orders"]

    # Of what is required of orders nothing is repeated: a part of them is as good as they are.
    assert names == ["structure", "selection", "within_partitions", "drift", "serveable"]


def test_a_recipients_value_is_a_partition_and_the_rule_of_the_share(tmp_path: Path) -> None:
    made = per("{column: party, value: \"concat('p', customer)\", property: party.id}")
    contract = a_set(tmp_path, made, "delta")
    view = contract.table("open_orders")

    assert view.partition_by == (("day", "identity"), ("party", "identity"))
    assert view.column("party").type == "string"
    assert view.primary_key == ("id", "party")
    ((shared,),) = [
        [one for one in share.tables if one.table == view.name] for share in declared_shares([contract])
    ]
    assert (shared.kind, shared.rule) == ("VIEW", "party = current_recipient('party.id')")
    assert (
        "per recipient by party = concat('p', customer): party = current_recipient('party.id')"
        in describe(contract)
    )


def test_a_value_that_is_made_of_personal_data_is_personal(tmp_path: Path) -> None:
    for value, is_personal in (("lower(email)", True), ("customer", False)):
        view = a_set(tmp_path, per(f"{{column: party, value: {value}}}")).table("open_orders")
        assert view.column("party").pii is is_personal


def test_a_column_as_it_is_tells_recipients_apart_too(tmp_path: Path) -> None:
    view = a_set(tmp_path, per("id")).table("open_orders")

    assert view.partition_by == (("day", "identity"), ("id", "identity"))
    assert [column.name for column in view.columns] == ["day", "id", "amount"]
    assert view.view is not None
    assert view.view.per_recipient is not None
    assert view.view.per_recipient.rule is None


def test_a_part_of_a_key_is_none(tmp_path: Path) -> None:
    assert (
        a_set(tmp_path, VIEW.replace("day, id, amount", "day, amount")).table("open_orders").primary_key == ()
    )


def test_what_decides_the_rows_is_the_definition_and_nothing_else(tmp_path: Path) -> None:
    views = [
        a_set(tmp_path / str(number), text).table("open_orders").view
        for number, text in enumerate(
            (
                VIEW,
                VIEW.replace("amount > 3", "amount > 4"),
                VIEW.replace("id, amount", "id"),
                per("{column: id}"),
                per("{column: id, property: a}"),
            )
        )
    ]
    digests = [view.digest for view in views if view is not None]

    # The last two differ in whose rows are whose, which is the share's to say.
    assert len(set(digests)) == len(digests) - 1
    assert digests[-1] == digests[-2]


def test_a_description_tells_what_a_view_selects(tmp_path: Path) -> None:
    said = describe(a_set(tmp_path))

    assert "table shop.open_orders (iceberg, view of shop.orders, partitioned by day)" in said
    assert "  rows where amount > 3\n" in said
    assert "shared as shop_share.shop.open_orders: shop.open_orders" in said


FAULTS: dict[str, tuple[str, str, str]] = {
    "of an unknown table": (VIEW.replace("of: orders", "of: order"), "no table 'order'", "Did you mean 'orders'?"),
    "of a view": (VIEW.replace("of: orders", "of: open_orders"), "no table 'open_orders' for a view", "'orders'"),
    "with an unknown column": (VIEW.replace("id, amount", "id, amuont"), "no column 'amuont'", "'amount'"),
    "with a column twice": (VIEW.replace("id, amount", "id, ID"), "no column 'ID'", "Known are: amount"),
    "without columns": (VIEW.replace("columns: [day, id, amount], ", ""), "is missing", "Add it"),
    "with all columns that will be": (VIEW.replace("[day, id, amount]", "[]"), "cannot be a list", "1 item"),
    "without the day of a daily set": (
        VIEW.replace("day, id, amount", "id"), "not partitioned by its day first", "Put the day of orders",
    ),
    "with columns of its own": (
        VIEW + "    properties:\n      - {name: day, logicalType: date}\n",
        "properties of its own", "columns of the view",
    ),
    "that is also delivered": (
        VIEW + "      - {property: source, value: open}\n", "source and view", "or a view of another table",
    ),
    "with a write mode": (
        VIEW + "      - {property: write, value: append}\n", "no write mode of its own", "written with its table",
    ),
    "by name only": (
        "  - {name: open_orders, physicalName: shop.open_orders, physicalType: view}\n", "has no columns", "a view",
    ),
    "that is called a table": (
        VIEW.replace("    customP", "    physicalType: table\n    customP", 1), "called a table and is none", "out",
    ),
    "of another day's rows": (
        VIEW.replace("amount > 3", "day > CURRENT_DATE - 7"), "calls current_date", "derived table",
    ),
    "by lot": (VIEW.replace("amount > 3", "rand () < 0.5"), "calls rand", "derived table"),
    "of other tables": (
        VIEW.replace("amount > 3", "id IN (SELECT id FROM b)"), "cannot ask other tables", "derived table",
    ),
    "of whoever reads": (
        VIEW.replace("amount > 3", "\"id = current_recipient('x')\""), "cannot know who reads it", "perRecipient",
    ),
    "per a column it does not have": (per("email"), "names 'email'", "Put it into its columns"),
    "per a column that is there": (per("{column: Email, value: id}"), "has a value for 'Email'", "another name"),
    "per no property": (per("{column: id, property: \"a'b\"}"), "cannot be \"a'b\"", "a letter first"),
    "per a month": (
        per("{column: day}").replace("open_orders\n    c", "open_orders\n    c"), "transform of day", "own values",
    ),
    "with a word we do not know": (VIEW.replace("where:", "when:"), "unknown field 'when'", "'where'"),
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "per a month": {
        "partitioned: true, partitionKeyPosition: 1}": "partitioned: true, partitionKeyPosition: 1, "
        "customProperties: [{property: partitionTransform, value: day}]}"
    }
}
"""What a case replaces in the tables of the set."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_view_that_cannot_be_is_refused_with_a_remedy(tmp_path: Path, name: str) -> None:
    text, problem, hint = FAULTS[name]
    with pytest.raises(ContractError) as caught:
        a_set(tmp_path, text, **MORE.get(name, {}))
    errors = [caught.value, *caught.value.also]
    fitting = [error for error in errors if problem in error.problem]
    assert fitting, [str(error) for error in errors]
    assert hint in fitting[0].hint


@pytest.mark.parametrize(
    "where",
    [
        "customer = 'SELECT now()'",
        "`day` > date'2024-01-01'",
        'customer <> "rand()"',
        "exists(array(id), x -> x > 1)",
    ],
)
def test_words_in_texts_are_no_calls(tmp_path: Path, where: str) -> None:
    view = a_set(tmp_path, VIEW.replace("where: amount > 3", f"where: {where!r}")).table("open_orders").view
    assert view is not None
    assert view.where == where


def test_nothing_is_derived_of_a_view(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"unknown table \{open_orders\}"):
        a_set(tmp_path, **{"FROM {orders}": "FROM {open_orders}"})
