"""`lakeshare apply` of 1,000 shares with 20 tables each under 30 s, and a plan that finds nothing to do under 3 s.

Run: `python -m bench.apply`. Beside them, in the same run: the same rows as bare inserts, and the file's YAML alone.
Times are of the command's work in a process that has its imports done, with the processor's share in brackets: on a
busy machine only that tells anything.
"""

import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml
from sqlalchemy import insert

from lakeshare_server.access.rules import require_decidable_rules
from lakeshare_server.catalog import Catalog, open_catalog
from lakeshare_server.catalog.declared import apply_files, plan_changes, read_files
from lakeshare_server.catalog.models import SchemaRow, SharedTableRow, ShareRow
from lakeshare_server.catalog.sharing import Edit
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions

SHARES, TABLES = 1_000, 20
LONGEST_APPLY_S, LONGEST_PLAN_S = 30.0, 3.0


def main() -> int:
    """Measure, print, and return the exit code."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        file = folder / "shares.yaml"
        file.write_text(shares_yaml())
        catalog = open_catalog(f"sqlite:///{folder / 'applied.db'}")
        bare = open_catalog(f"sqlite:///{folder / 'bare.db'}")
        settings = ServerSettings(state_dir=folder)
        versions = Versions(catalog, settings, Stores(settings))

        def check(edit: Edit) -> None:
            require_decidable_rules(edit, versions)

        applying = _taken(lambda: len(apply_files(catalog, read_files([file]), "bench", check=check).steps))
        planning = min(_taken(lambda: len(plan_changes(catalog, read_files([file])).steps)) for _ in range(3))
        inserting = _taken(lambda: _insert(bare))
        parsing = min(_taken(lambda: len(yaml.load(file.read_text(), yaml.CSafeLoader))) for _ in range(3))
        catalog.close()
        bare.close()
    print(
        f"apply of {SHARES} shares with {TABLES} tables each: {applying}, at most {LONGEST_APPLY_S:.0f} s; "
        f"the rows as bare inserts {inserting} (x {applying.wall_s / inserting.wall_s:.1f})"
    )
    print(
        f"a plan without changes: {planning}, at most {LONGEST_PLAN_S:.0f} s; "
        f"the file's YAML alone {parsing} (x {planning.wall_s / parsing.wall_s:.1f})"
    )
    return 0 if applying.wall_s <= LONGEST_APPLY_S and planning.wall_s <= LONGEST_PLAN_S else 1


@dataclass(frozen=True, order=True)
class Taken:
    """How long something took, on the clock and on the processor."""

    wall_s: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} s ({self.cpu_s:.2f} s)"


def shares_yaml() -> str:
    """The file: each table with a comment and a rule, as somebody would write it."""
    said = ["shares:"]
    for share in range(SHARES):
        said.append(f"  partner_{share}:\n    comment: What partner {share} gets\n    tables:")
        said += [
            f"      sales.orders_{table}:\n        table: lake.orders_{table}\n        rule: region = 'R{table}'"
            for table in range(TABLES)
        ]
    return "\n".join(said)


def _insert(catalog: Catalog) -> int:
    now = datetime.now(UTC)
    with catalog.writing() as session:
        session.execute(insert(ShareRow), [_share(key, now) for key in range(1, SHARES + 1)])
        session.execute(insert(SchemaRow), [_schema(key) for key in range(1, SHARES + 1)])
        session.execute(
            insert(SharedTableRow),
            [_table(key, table, now) for key in range(1, SHARES + 1) for table in range(TABLES)],
        )
    return SHARES


def _share(key: int, now: datetime) -> dict[str, object]:
    name = f"partner_{key}"
    return {
        "key": key,
        "id": str(uuid.uuid4()),
        "name": name,
        "name_key": name,
        "declared": False,
        "created_at": now,
    }


def _schema(key: int) -> dict[str, object]:
    return {"key": key, "share_key": key, "name": "sales", "name_key": "sales", "declared": False}


def _table(schema: int, number: int, now: datetime) -> dict[str, object]:
    name = f"orders_{number}"
    return {
        "id": str(uuid.uuid4()),
        "schema_key": schema,
        "name": name,
        "name_key": name,
        "lake_table": f"lake.{name}",
        "history": True,
        "declared": False,
        "rule": f"region = 'R{number}'",
        "added_at": now,
    }


def _taken(work: Callable[[], int]) -> Taken:
    began, used = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - began, time.process_time() - used)


if __name__ == "__main__":
    sys.exit(main())
