"""The sample data of `examples/`: made here, the same in each run, checked in beside the examples.

`python -m tests.builders.example_data` writes them again; a test compares them.
"""

import csv
import io
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
BOOKS = {"Atlas": "39.00", "Birds": "18.50", "Cooking": "24.90", "Dogs": "12.00", "Etching": "31.25"}
STATIONS = ("Harbour", "Market", "Museum", "Park", "Station")

CARRIERS = {"AL": "Alpine Air", "BR": "Breeze", "CO": "Coastal", "DU": "Dune Lines", "FJ": "Fjord Air"}
MODELS = {"A320": 180, "E190": 100, "AT76": 70}
AIRPORTS = ("ALP", "BAY", "CAP", "DEL", "EST")
REGISTRATIONS = tuple(f"X{number}" for number in range(101, 117))
DAYS, HOURS = ("2024-03-01", "2024-03-02"), ("06", "07", "08", "09")
FLIGHTS_IN_AN_HOUR = 36
# The hour that is delivered with a defect first: its delays are in seconds.
RED_HOUR = "2024-03-02-07"


def make_files() -> Mapping[str, str]:
    """Returns the text of each file by its path below `examples/`."""
    hours = {f"{day}-{hour}": make_departures(day, hour) for day in DAYS for hour in HOURS}
    delivered = {
        f"airline/data/{key[:10]}/departures/{key}/{name}": text
        for key, rows in hours.items()
        for name, text in (("departures.csv", _format_departures(rows)), ("_SUCCESS", ""))
    }
    in_seconds = [(*row[:5], row[5] * 60 if row[5] else "") for row in hours[RED_HOUR]]
    return {
        "first_csv/trips.csv": make_trips(),
        **delivered,
        "airline/data/in_seconds.csv": _format_departures(in_seconds),
        "airline/data/operations.sql": make_operations(),
        "dagster_project/data/orders.csv": make_orders(),
    }


def make_trips(count: int = 240) -> str:
    """Returns trips of a bicycle rental; a trip that has not ended has `NA` minutes."""
    draw = random.Random(1)
    rows = []
    for number in range(count):
        day, (start, end) = 1 + number // 40, draw.sample(STATIONS, 2)
        minutes = "NA" if number % 60 == 59 else draw.randint(4, 90)
        fare = "" if minutes == "NA" else f"{1 + 0.15 * int(minutes):.2f}"
        rider = f"rider{draw.randint(1, 60):02}@example.org"
        rows.append((5001 + number, f"2024-06-{day:02}", start, end, minutes, fare, rider))
    names = ("Trip ID", "started_on", "from_station", "to_station", "minutes", "fare", "rider_email")
    return _format_csv(names, rows)


def make_orders(count: int = 150) -> str:
    """Returns orders of a bookshop; every tenth of them was changed later, and is in the file twice."""
    draw = random.Random(3)
    rows = []
    for number in range(count):
        book, copies = draw.choice(list(BOOKS)), draw.randint(1, 5)
        at = f"2024-05-{1 + number // 10:02} {8 + number % 10:02}"
        rows.append((100 + number, book, copies, BOOKS[book], f"{at}:00:00"))
        if number % 10 == 0:
            rows.append((100 + number, book, copies + 1, BOOKS[book], f"{at}:30:00"))
    return _format_csv(("order_id", "book", "copies", "price", "changed_at"), rows)


def make_departures(day: str, hour: str) -> list[tuple[object, ...]]:
    """Returns the departures of an hour; a cancelled one has no delay."""
    draw = random.Random(f"{day} {hour}")
    rows: list[tuple[object, ...]] = []
    for number in range(FLIGHTS_IN_AN_HOUR):
        flight = int(hour) * 100 + number
        origin, dest = draw.sample(AIRPORTS, 2)
        minute = number * 60 // FLIGHTS_IN_AN_HOUR
        delay = "" if draw.random() < 0.05 else max(-10, round(draw.gauss(12, 20)))
        registration = draw.choice(REGISTRATIONS)
        rows.append((flight, registration, origin, dest, f"{day} {hour}:{minute:02}:00", delay))
    return rows


def make_operations() -> str:
    """Returns SQL that makes the tables of the airline's operations, as they are before the first day."""
    draw = random.Random(2)
    names = list(MODELS)
    carriers = [f"('{code}', '{name}', false, '2024-01-01 00:00:00')" for code, name in CARRIERS.items()]
    aircraft = []
    for number, registration in enumerate(REGISTRATIONS):
        model, code = draw.choice(names), list(CARRIERS)[number % 3]
        changed_at = f"2024-01-{2 + number:02} 12:00:00"
        aircraft.append(f"('{registration}', '{code}', '{model}', {MODELS[model]}, '{changed_at}')")
    return (
        "CREATE TABLE carriers\n"
        "  (code text PRIMARY KEY, name text, is_closed boolean, changed_at timestamp);\n"
        "CREATE TABLE aircraft\n"
        "  (registration text PRIMARY KEY, carrier text, model text, seats int, changed_at timestamp);\n\n"
        f"INSERT INTO carriers VALUES\n  {_join(carriers)};\n\n"
        f"INSERT INTO aircraft VALUES\n  {_join(aircraft)};\n"
    )


def _join(values: Iterable[str]) -> str:
    return ",\n  ".join(values)


def _format_departures(rows: Iterable[Sequence[object]]) -> str:
    return _format_csv(("flight", "registration", "origin", "dest", "scheduled_at", "delay"), rows)


def _format_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def write_files(root: Path = EXAMPLES) -> None:
    """Writes the files below a folder."""
    for name, text in make_files().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


if __name__ == "__main__":
    write_files()
