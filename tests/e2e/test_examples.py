"""The examples do what their pages show, and recipients read what an independent computation gives."""

import csv
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import dagster as dg
import delta_sharing
import duckdb
import pytest

from lakeshare_pipelines.cli.project import TEMPLATES, write_project
from lakeshare_pipelines.demo.processes import find_postgres
from tests.builders.example_data import EXAMPLES, make_files
from tests.builders.page_commands import PageUser, is_shown, page_user
from tests.integration.postgres_server import PostgresServer

Rows = list[tuple[object, ...]]
LEFT_OUT = shutil.ignore_patterns(
    *("__pycache__", ".lakeshare", "landing", "warehouse", "reports", "*.share"),
    *("history", "schedules", "storage", "logs", ".*.lock", "*.egg-info"),
)


def copy_example(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of an example, as it is checked in."""
    return Path(shutil.copytree(EXAMPLES / name, tmp_path_factory.mktemp("examples") / name, ignore=LEFT_OUT))


def read_page(folder: Path) -> str:
    return (folder / "README.md").read_text()


def read_shared(user: PageUser, profile: str, table: str, version: int | None = None) -> Rows:
    """The rows of a shared table in pandas, in order; empty values are None."""
    frame = delta_sharing.load_as_pandas(f"{user.folder / profile}#{table}", version=version)
    connection = duckdb.connect()
    return connection.register("shared", frame).sql("SELECT * FROM shared ORDER BY ALL").fetchall()


def test_a_page_may_leave_out_lines_and_no_others() -> None:
    printed = "   1.2 s  write\nok  a\nok  b\ndone\n"
    for shown in ("...\ndone", "   9.0 s  write\n...\nok  b\ndone", "...\nok  a\nok  b\ndone", "..."):
        assert is_shown(printed, shown.splitlines()), shown
    for shown in ("", "done", "...\nok  a\ndone", "...\nok  b", "...\nok  c\n..."):
        assert not is_shown(printed, shown.splitlines()), shown


def test_the_sample_data_are_those_of_the_generator() -> None:
    made = make_files()
    assert {name: (EXAMPLES / name).read_text() for name in made} == made


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageUser]:
    """A user who followed the page of `first_csv`."""
    with page_user(copy_example("first_csv", tmp_path_factory), tmp_path_factory) as user:
        user.follow(read_page(user.folder))
        yield user


def test_the_recipient_of_a_first_csv_reads_its_rows(city: PageUser) -> None:
    with (EXAMPLES / "first_csv" / "trips.csv").open() as file:
        delivered = list(csv.DictReader(file))
    expected = [
        (
            int(row["Trip ID"]),
            *(row[name] for name in ("started_on", "from_station", "to_station")),
            None if row["minutes"] == "NA" else int(row["minutes"]),
            Decimal(row["fare"]) if row["fare"] else None,
            row["rider_email"],
        )
        for row in delivered
    ]
    assert len(expected) == 240
    read = read_shared(city, "ada.share", "city.trips.trips")
    assert [(row[0], str(row[1]), *row[2:]) for row in read] == expected


def test_the_first_csv_is_what_init_and_draft_make(
    city: PageUser, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = tmp_path / "first_csv"
    write_project(made)
    drafted = made / "contracts" / "trips.yaml"
    city.run(f"lakeshare contract draft trips.csv --share city --output {shlex.quote(str(drafted))}")
    generated = read_files(made)
    assert set(generated) == {*TEMPLATES, "contracts/trips.yaml"}
    own = {name: (EXAMPLES / "first_csv" / name).read_text() for name in ("README.md", "trips.csv")}
    assert read_files(copy_example("first_csv", tmp_path_factory)) == generated | own


def read_files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def airline(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageUser]:
    """A user with PostgreSQL who followed the page of `airline`."""
    folder = copy_example("airline", tmp_path_factory)
    database = postgres.new_database().rpartition("/")[2]
    contract = folder / "contracts" / "operations.yaml"
    url = "jdbc:postgresql://localhost:5432/airline"
    text = contract.read_text()
    assert text.count(url) == 2
    contract.write_text(text.replace(url, f"jdbc:postgresql://127.0.0.1:{postgres.port}/{database}"))
    variables = {
        "PATH": f"{find_postgres(tmp_path_factory.mktemp('psql'))}:{os.environ['PATH']}",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(postgres.port),
        "PGDATABASE": database,
        "PGUSER": "lakeshare",
        "PGPASSWORD": "any",
    }
    with page_user(folder, tmp_path_factory, **variables) as user:
        user.follow(read_page(folder))
        yield user


class Airline:
    """The same tables by DuckDB: the states of the database are kept, and joined with the delivered files by time."""

    def __init__(self) -> None:
        self.data, self.tables = EXAMPLES / "airline" / "data", duckdb.connect()
        self.tables.execute((self.data / "operations.sql").read_text())
        self.tables.execute("CREATE TABLE states AS FROM aircraft; CREATE TABLE names AS FROM carriers")
        self.tables.execute((self.data / "operations_2024-03-02.sql").read_text())
        self.tables.execute("INSERT INTO states FROM aircraft WHERE changed_at >= '2024-03-02'")
        files = self.data / "*" / "departures" / "*" / "departures.csv"
        self.tables.execute(f"CREATE TABLE departures AS FROM read_csv('{files}')")
        self.tables.execute(
            "CREATE TABLE flights AS SELECT scheduled_at::date AS flight_date, flight, scheduled_at, "
            "departures.registration, carrier, seats, origin || '-' || dest AS route, delay "
            "FROM departures ASOF JOIN states ON departures.registration = states.registration "
            "AND scheduled_at >= changed_at"
        )

    def rows(self, query: str) -> Rows:
        return self.tables.sql(f"FROM ({query}) ORDER BY ALL").fetchall()

    def punctuality(self, names: str, days: str) -> Rows:
        """`gold.punctuality` of some days, with the names of carriers in a table."""
        return self.rows(
            "SELECT flight_date, carrier, name, count(*), count(*) - count(delay), sum((delay <= 15)::int) "
            f"FROM flights JOIN {names} ON code = carrier WHERE flight_date IN ({days}) GROUP BY ALL"
        )


FIRST, SECOND = "'2024-03-01'", "'2024-03-02'"


def test_recipients_of_the_airline_read_flights_with_the_aircraft_of_their_time(airline: PageUser) -> None:
    expected = Airline()
    flights = read_shared(airline, "airport.share", "airline.silver.flights")
    assert flights == expected.rows("FROM flights")
    assert len(flights) == 288
    assert read_shared(airline, "airport.share", "airline.gold.worst_flights") == expected.rows(
        "SELECT flight_date, route, min_by(flight, (-delay, flight)), min_by(carrier, (-delay, flight)), max(delay), "
        "min_by(seats, (-delay, flight)) FROM flights WHERE delay IS NOT NULL GROUP BY flight_date, route"
    )


def test_a_day_that_is_pinned_has_the_rows_of_the_number_it_was_made_of(airline: PageUser) -> None:
    expected, table = Airline(), "airline.gold.punctuality"
    before, after, again = (read_shared(airline, "airport.share", table, number) for number in range(3))
    assert before == expected.punctuality("names", FIRST)
    assert after == expected.punctuality("carriers", f"{FIRST}, {SECOND}")
    assert again == [*before, *expected.punctuality("carriers", SECOND)]
    assert before != after[: len(before)]


def test_lineage_names_the_publications_and_deliveries_of_a_gold_table(airline: PageUser) -> None:
    def trace(number: int) -> dict[str, tuple[int, dict[str, str]]]:
        """Number and deliveries of each table that the day of a publication was made from."""
        node = json.loads(airline.run(f"lakeshare lineage gold.punctuality {number} --json"))
        found, waiting = {}, [part for part in node["parts"] if "2024-03-01" in part["partitions"]][:1]
        for part in waiting:
            for read in part["inputs"]:
                waiting += read["parts"]
                delivered = {
                    key: digest for each in read["parts"] for key, digest in each["deliveries"].items()
                }
                found[read["table"]] = read["version"], delivered
        return found

    first, restated, pinned = map(trace, range(3))
    assert {table: number for table, (number, _) in first.items()} == {
        "silver.flights": 0,
        "bronze.carriers": 0,
        "bronze.departures": 0,
        "bronze.aircraft": 0,
    }
    hours = {f"2024-03-01-{hour}" for hour in ("06", "07", "08", "09")}
    assert set(first["bronze.departures"][1]) == hours
    assert pinned == first
    assert {number for number, _ in restated.values()} == {1}
    assert set(restated["bronze.departures"][1]) == hours | {key.replace("-01-", "-02-", 1) for key in hours}


@pytest.fixture(scope="module")
def bookshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageUser]:
    """A user who followed the page of `dagster_project`."""
    with page_user(copy_example("dagster_project", tmp_path_factory), tmp_path_factory) as user:
        user.export("PYTHONPATH", "src")  # in place of `pip install -e .`
        user.follow(read_page(user.folder))
        yield user


def test_recipients_of_the_bookshop_read_the_newest_state_of_each_order(bookshop: PageUser) -> None:
    files, tables = EXAMPLES / "dagster_project" / "data" / "orders.csv", duckdb.connect()
    tables.execute(
        "CREATE TABLE orders AS SELECT order_id, book, copies, price::decimal(10, 2) AS price, changed_at "
        f"FROM read_csv('{files}') QUALIFY row_number() OVER (PARTITION BY order_id ORDER BY changed_at DESC) = 1"
    )
    orders = tables.sql("FROM orders ORDER BY ALL").fetchall()
    books = tables.sql("SELECT book, sum(copies), sum(copies * price) FROM orders GROUP BY ALL ORDER BY ALL")
    assert len(orders) == 150
    assert read_shared(bookshop, "agent.share", "publishers.sales.orders") == orders
    earned = books.fetchall()
    assert read_shared(bookshop, "agent.share", "publishers.sales.books") == earned
    best = sorted(earned, key=lambda row: row[2], reverse=True)[:3]
    with (bookshop.folder / "reports" / "bestsellers.csv").open() as file:
        assert [tuple(row) for row in csv.reader(file)] == [
            ("book", "copies", "revenue"),
            *(tuple(map(str, row)) for row in best),
        ]


def test_dagster_shows_the_checks_of_the_bookshop_and_the_number_that_was_read(bookshop: PageUser) -> None:
    number, checks = bookshop.process(read_instance)
    assert number == 0
    assert checks == {
        "orders/orders": {"structure", "rows_parsed", "merge_keys", "not_empty", "serveable"},
        "revenue/books": {"structure", "not_empty", "serveable"},
    }


def read_instance() -> tuple[object, dict[str, set[str]]]:
    """The number that `bestsellers` read last; checks of each asset that passed, without those of columns."""
    with dg.DagsterInstance.get() as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey("bestsellers"))
        assert event is not None
        passed: dict[str, set[str]] = {}
        for record in instance.get_event_records(
            dg.EventRecordsFilter(dg.DagsterEventType.ASSET_CHECK_EVALUATION), limit=100
        ):
            dagster_event = record.event_log_entry.dagster_event
            check = dagster_event.asset_check_evaluation_data
            if check.passed and not check.check_name.startswith("expect_"):
                passed.setdefault(check.asset_key.to_user_string(), set()).add(check.check_name)
        return event.asset_materialization.metadata["publication"].value, passed
