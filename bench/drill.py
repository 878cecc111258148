"""How long it takes until a lost table of many files is open again, and how that divides.

Run: `python -m bench.drill [--files 10000]`. A Delta table of small files in a folder, a point of it, a drill: every
object is copied to scratch, the table opened, its rows counted, each file compared with its checksum. Beside it,
`cp -r` of the same files, which proves nothing.
"""

import argparse
import io
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.run import run_drill
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.backup_points import a_backup, a_point

TURNS = 3


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    count = parser.parse_args().files
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"writing a table of {count:,} files and its point", flush=True)
        _table(folder / "lake" / "table", count)
        backup = a_backup(folder / "lake", folder / "backups")
        a_point(backup, folder / "held")
        settings = LakeSettings(_env_file=None, state_dir=folder / "state")
        for turn in range(TURNS):
            copied_s = _copied(folder)
            ran = run_drill(backup, Points(backup), settings, str(turn))
            print(
                f"drill: {ran.objects:,} objects, {ran.size_bytes / 1e6:.1f} MB in {ran.rto_s:.1f} s "
                f"({ran.objects / ran.rto_s:,.0f} objects/s), {ran.compared:,} compared; cp -r alone {copied_s:.1f} s",
                flush=True,
            )
            if not ran.passed:
                print("\n".join(ran.reasons))
                return 1
    return 0


def _table(root: Path, files: int) -> None:
    """A Delta table of `files` data files of three rows each, over a hundred days."""
    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction, create_table_with_add_actions

    rows = pa.table({"id": [1, 2, 3], "said": ["a", "b", "c"]})
    file = io.BytesIO()
    pq.write_table(rows, file)
    adds = []
    for number in range(files):
        path = root / f"day={number % 100:03}" / f"part-{number:05}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
        values = {"day": f"{number % 100:03}"}
        adds.append(
            AddAction(str(path.relative_to(root)), path.stat().st_size, values, 0, True, '{"numRecords":3}')
        )
    schema = Schema.from_arrow(rows.append_column("day", pa.array(["", "", ""])).schema)
    create_table_with_add_actions(str(root), schema, adds, mode="error", partition_by=["day"])
    DeltaTable(root).create_checkpoint()


def _copied(folder: Path) -> float:
    began = time.monotonic()
    subprocess.run(["cp", "-r", folder / "backups" / "objects", folder / "copied"], check=True)
    seconds = time.monotonic() - began
    shutil.rmtree(folder / "copied")
    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
