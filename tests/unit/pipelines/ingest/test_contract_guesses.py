"""Guesses of a draft that need no data: names, delimiters, types of odd mixtures, personal data, ranges, partitions."""

import gzip
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import load_contract
from lakeshare_pipelines.ingest import profile
from lakeshare_pipelines.ingest.draft import (
    ColumnGuess,
    Draft,
    guess_partition,
    guess_pii,
    guess_rules,
    guess_type,
    make_names,
    render,
    round_up,
)
from lakeshare_pipelines.ingest.profile import ColumnProfile, Profile, classify, sniff_delimiter, take_parts


def test_of_large_text_files_evenly_spread_whole_lines_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "SAMPLE_BYTES", 4000)
    monkeypatch.setattr(profile, "PART_BYTES", 1000)
    large, small, packed = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "c.csv.gz"
    lines = [f"{number:04},{'x' * (number % 7)}\n" for number in range(4000)]
    large.write_text("id,text\n" + "".join(lines))
    small.write_text("id,text\n1,\n2,")
    packed.write_bytes(gzip.compress(large.read_bytes()))
    assert take_parts([small], tmp_path) == ([small], "")
    assert take_parts([large], None) == ([large], "")
    folder = tmp_path / "parts"
    folder.mkdir()
    copies, remark = take_parts([large, small], folder)
    assert remark == " (a sample of 0 MiB)"
    header, *taken = copies[0].read_text().splitlines(keepends=True)
    assert (header, set(taken) - set(lines), len(set(taken))) == ("id,text\n", set(), len(taken))
    quarters = [sum(int(line[:4]) // 1000 == quarter for line in taken) for quarter in range(4)]
    assert min(quarters) > 50
    assert copies[1].read_text() == small.read_text()
    [copy], _ = take_parts([packed], folder)
    assert large.read_text().startswith(copy.read_text())
    assert copy.stat().st_size >= 4000


def a_column(name: str = "value", *classes: str, rows: int = 1000, **changed: object) -> ColumnProfile:
    fields = {"name": name, "place": 0, "classes": frozenset(classes), "filled": rows}
    return ColumnProfile(**{**fields, **changed})  # type: ignore[arg-type]  # fields of the builder's callers


def test_names_become_valid_and_stay_apart() -> None:
    given = ["Order ID", "order_id", "ORDER_ID", "Größe", "2024", "价格", "fine_Name", "grosse"]
    assert make_names(given) == {
        "Order ID": "order_id",
        "order_id": "order_id_2",
        "ORDER_ID": "ORDER_ID_3",
        "Größe": "grosse",
        "2024": "_2024",
        "价格": "column_6",
        "fine_Name": "fine_Name",
        "grosse": "grosse_2",
    }


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("a,b\n1,2\n", ","),
        ("a;b\n1,5;2,5\n1,5;2,5\n", ";"),
        ("a\tb c, d\n1\t2\n", "\t"),
        ('a|b\n"x|y"|2\n', "|"),
        ("alone\n1\n", ","),
    ],
)
def test_the_delimiter_is_the_one_that_divides_all_lines_alike(text: str, delimiter: str) -> None:
    assert sniff_delimiter(text) == delimiter


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0", "int"),
        ("-12", "int"),
        ("007", "string"),
        ("+4912345", "string"),
        ("9999999999", "bigint"),
        ("12345678901234567890", "string"),
        (".5", "decimal"),
        ("5.", "string"),
        ("1e-5", "double"),
        ("1d", "string"),
        ("TRUE", "boolean"),
        ("yes", "string"),
        ("2024-02-29", "date"),
        ("2024-2-9", "string"),
        ("2024-02-29T10:00:00Z", "timestamp"),
        ("NA", "token"),
    ],
)
def test_a_text_has_one_class(text: str, kind: str) -> None:
    assert classify(text) == kind


def test_the_type_holds_every_class_that_was_seen() -> None:
    numbers = {"low": -5.0, "high": 12345.0}
    assert guess_type(a_column("n", "int", **numbers))[0] == "int"
    assert guess_type(a_column("n", "int", "bigint", "NA", **numbers))[0] == "bigint"
    assert guess_type(a_column("n", "int", "decimal", scale=2, **numbers))[0] == "decimal(10,2)"
    large = {"low": 0.25, "high": 12345678901234567.25}
    assert guess_type(a_column("n", "decimal", scale=2, **large))[0] == "decimal(21,2)"
    assert guess_type(a_column("n", "decimal", scale=12, **numbers))[0] == "double"
    assert guess_type(a_column("n", "int", "double", **numbers))[0] == "double"
    assert guess_type(a_column("n", "date", "timestamp"))[0] == "timestamp"
    assert guess_type(a_column("n", "date", "int")) == (
        "string",
        "type string: texts and values of type date and int are mixed",
    )
    assert guess_type(a_column("n", "NA"))[0] == "string"
    kind, reason = guess_type(a_column("n", "string", examples=("31/12/2024", "1/2/2024")))
    assert (kind, "d/M/yyyy" in reason) == ("string", True)


def test_personal_data_are_found_by_name_or_by_values() -> None:
    named = ["E-Mail", "customerEmail", "first_name", "Telefon", "date_of_birth", "IBAN", "ip_address"]
    assert [name for name in named if guess_pii(a_column(name)) is None] == []
    harmless = ["country_name", "shipping", "amount", "description", "zip", "email_count", "tip", "status"]
    assert [name for name in harmless if guess_pii(a_column(name)) is not None] == []
    mails = a_column("contact", examples=("a@b.example", "c@d.example"))
    assert guess_pii(mails) == "its values look like e-mail addresses"
    assert guess_pii(a_column("text", examples=("a@b.example", "see a@b.example", "no"))) is None


def test_ranges_leave_room_and_are_not_guessed_for_counters() -> None:
    assert [round_up(value) for value in (0.03, 1, 1.2, 3, 99, 100, 101)] == [0.05, 1, 2, 5, 100, 100, 200]
    [rule] = guess_rules(a_column("amount", low=-3.0, high=870.0), 1000, "double", is_key=False)
    assert rule.arguments == {"min_value": -5, "max_value": 2000}
    for name in ("order_id", "year", "zip"):
        assert not list(guess_rules(a_column(name, low=1.0, high=9.0), 1000, "int", is_key=False))
    assert not list(guess_rules(a_column("x", low=1.0, high=float("inf")), 1000, "double", is_key=False))
    rare = a_column("kind", values=("a", "b"), rows=9)
    assert not list(guess_rules(rare, 9, "string", is_key=False))


def test_odd_names_stay_within_their_comments_and_quotes(tmp_path: Path) -> None:
    odd = 'on: [x]\n# "y"'
    column = ColumnGuess("on", odd, "string", False, (f"source: {odd}",), is_key=True)
    text = render(Draft("no", "yes", odd, 1, "delta", "a*", (column,), (odd,), share="off"))
    (tmp_path / "no.yaml").write_text(text)
    [table] = load_contract(tmp_path / "no.yaml").tables
    assert (table.name, table.columns[0].name, table.columns[0].source) == ("no.yes", "on", odd)


def test_a_day_is_a_partition_where_its_files_are_large_enough() -> None:
    def guess(rows: int) -> tuple[str | None, str]:
        columns = (
            a_column("seen", rows=rows),
            a_column("day", rows=rows, low="2024-01-01", high="2024-01-10"),
        )
        return guess_partition(Profile(rows, 0, columns), {"seen": "timestamp", "day": "date"})

    assert guess(2_000_000) == ("day", "partitioned by day: about 200,000 rows a day")
    column, reason = guess(1000)
    assert (column, reason.startswith("not partitioned: by day there would be about 100 rows a day")) == (
        None,
        True,
    )
