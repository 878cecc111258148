"""Tables whose logs are laid out awkwardly: every kind of checkpoint, compaction, clean-up, absolute paths, clones."""

import json
import time
from urllib.parse import quote

from tests.builders.delta_log import Action, commit, file_key
from tests.builders.hostile.place import DELETION_VECTORS, Place, hostile

ROWS = "SELECT {0} AS id, concat('row ', {0}) AS s, CASE WHEN {0} % 3 > 0 THEN DATE'2020-01-01' + {0} % 3 END AS p"


def some_commits(at: Place, count: int, *properties: str) -> None:
    """A partitioned table with so many commits: the table itself, inserts, a delete in the middle."""
    given = f"TBLPROPERTIES ({', '.join(properties)})" if properties else ""
    at.sql(f"CREATE TABLE {{t}} (id INT, s STRING, p DATE) USING delta PARTITIONED BY (p) {given}")
    for number in range(1, count):
        if number == count // 2:
            at.sql("DELETE FROM {t} WHERE id = 1")
        else:
            at.sql(f"INSERT INTO {{t}} {ROWS.format(number)}")


@hostile(versions=(3, 4), on_stores=True)
def v2_checkpoint_json(at: Place) -> None:
    """Checkpoints of version 2: JSON at the top, the files in sidecars; early commits are gone."""
    at.conf(checkpointV2__topLevelFileFormat="json", checkpoint__partSize="2")
    some_commits(at, 5, "'delta.checkpointPolicy'='v2'", "'delta.checkpointInterval'='3'")
    at.forget(0, 1, 2)


@hostile(versions=(3, 4))
def v2_checkpoint_parquet(at: Place) -> None:
    """Checkpoints of version 2: parquet at the top, the files in sidecars; early commits are gone."""
    at.conf(checkpointV2__topLevelFileFormat="parquet", checkpoint__partSize="2")
    some_commits(at, 5, "'delta.checkpointPolicy'='v2'", "'delta.checkpointInterval'='3'")
    at.forget(0, 1, 2)


@hostile(versions=(4, 5), on_stores=True)
def multi_part_checkpoint(at: Place) -> None:
    """A checkpoint in several files; early commits are gone."""
    at.conf(checkpoint__partSize="2")
    some_commits(at, 6, "'delta.checkpointInterval'='4'")
    at.forget(0, 1, 2, 3)


@hostile(versions=(4, 5))
def struct_stats_checkpoint(at: Place) -> None:
    """Statistics only as columns of the checkpoint, not as JSON; the commits that had them are gone."""
    some_commits(
        at, 6, "'delta.checkpointInterval'='4'",
        "'delta.checkpoint.writeStatsAsStruct'='true'", "'delta.checkpoint.writeStatsAsJson'='false'",
    )  # fmt: skip
    at.forget(0, 1, 2, 3)


@hostile(versions=(4, 5))
def no_stats_checkpoint(at: Place) -> None:
    """A checkpoint that has no statistics at all, in neither form."""
    some_commits(
        at, 6, "'delta.checkpointInterval'='4'",
        "'delta.checkpoint.writeStatsAsStruct'='false'", "'delta.checkpoint.writeStatsAsJson'='false'",
    )  # fmt: skip
    at.forget(0, 1, 2, 3)


@hostile(versions=(3, 5))
def log_compaction(at: Place) -> None:
    """A file that stands for commits 1 to 4, beside them; Delta reads it instead."""
    some_commits(at, 6)
    compact(at, 1, 4)


@hostile(versions=(4, 5))
def log_compaction_on_checkpoint(at: Place) -> None:
    """A checkpoint, a compaction that follows it, and commits behind; the first commits are gone."""
    some_commits(at, 6, "'delta.checkpointInterval'='2'")
    for path in (at.location / "_delta_log").glob(f"*{4:020}.checkpoint*"):
        path.unlink()
    (at.location / "_delta_log" / "_last_checkpoint").unlink()
    (at.location / "_delta_log" / "._last_checkpoint.crc").unlink(missing_ok=True)
    compact(at, 3, 4)
    at.forget(0, 1)


def compact(at: Place, start: int, end: int) -> None:
    """Write the file that stands for some commits."""
    latest: dict[str, Action] = {}
    files: dict[tuple[str, str], Action] = {}
    for version in range(start, end + 1):
        for action in commit(at.location, version):
            [(kind, told)] = action.items()
            if kind in ("add", "remove"):
                files[file_key(told)] = {kind: told | {"dataChange": False}}
            elif kind in ("protocol", "metaData"):
                latest[kind] = action
    lines = [json.dumps(action) + "\n" for action in (*latest.values(), *files.values())]
    path = at.location / "_delta_log" / f"{start:020}.{end:020}.compacted.json"
    path.write_text("".join(lines), "utf-8")


@hostile(versions=(2, 3, 4), cdf=((0, 4),), on_stores=True)
def in_commit_timestamps(at: Place) -> None:
    """Commit times in the log from the first commit on: the files' own times say something else."""
    at.sql(
        "CREATE TABLE {t} (id INT) USING delta TBLPROPERTIES ("
        "'delta.enableInCommitTimestamps'='true', 'delta.enableChangeDataFeed'='true')",
        *(f"INSERT INTO {{t}} VALUES ({number})" for number in range(4)),
    )
    _set_commit_times(at, *range(5), began=int(time.time() * 1000) - 3 * DAY_MS)


@hostile(versions=(2, 4), cdf=((0, 4),))
def in_commit_timestamps_later(at: Place) -> None:
    """Commit times in the log from version 3 on, by a clock that is ahead; before it the files' own times count."""
    at.sql(
        "CREATE TABLE {t} (id INT) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed'='true')",
        "INSERT INTO {t} VALUES (1)",
        "INSERT INTO {t} VALUES (2)",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps'='true')",
        "INSERT INTO {t} VALUES (3)",
    )
    _set_commit_times(at, 3, 4, began=int(time.time() * 1000) + DAY_MS)


DAY_MS = 86_400_000
ENABLED_AT = "delta.inCommitTimestampEnablementTimestamp"


def _set_commit_times(at: Place, *versions: int, began: int) -> None:
    """An hour between commits, far from when the files were written."""
    for hours, version in enumerate(versions):

        def dated(action: Action, at_ms: int = began + hours * 3_600_000) -> list[Action]:
            if "commitInfo" in action:
                action["commitInfo"]["inCommitTimestamp"] = at_ms
            if ENABLED_AT in action.get("metaData", {}).get("configuration", {}):
                action["metaData"]["configuration"][ENABLED_AT] = str(at_ms)
            return [action]

        at.rewrite(version, dated)


@hostile(versions=(1, 2), on_stores=True)
def absolute_paths(at: Place) -> None:
    """Files named by full URLs in the log, in a folder beside the table whose name needs encoding."""
    at.sql(
        "CREATE TABLE {t} (id INT, s STRING) USING delta",
        "INSERT INTO {t} VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO {t} VALUES (3, 'c')",
    )
    beside = at.beside("files +%")

    def moved(action: Action) -> list[Action]:
        if "add" in action:
            file = at.location / action["add"]["path"]
            action["add"]["path"] = "file://" + quote(str(file.rename(beside / f"# {file.name}")))
        return [action]

    at.rewrite(1, moved)


@hostile(versions=(0, 1), needs=DELETION_VECTORS, on_stores=True)
def shallow_clone(at: Place) -> None:
    """A clone of another table's files and vectors, with a commit of its own on top."""
    source = f"delta.`{at.beside('source')}`"
    at.sql(
        f"CREATE TABLE {source} (id INT, p STRING) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.enableDeletionVectors'='true')",
        f"INSERT INTO {source} SELECT id, CASE id % 2 WHEN 0 THEN 'a b' ELSE 'c%d' END FROM range(10)",
        f"DELETE FROM {source} WHERE id IN (3, 4)",
        f"CREATE TABLE {{t}} SHALLOW CLONE {source}",
        "INSERT INTO {t} VALUES (100, 'own')",
    )


@hostile(versions=(5,))
def vacuumed(at: Place) -> None:
    """Files of older versions are gone, so only the newest can be read; a feature says who may vacuum."""
    at.sql(
        "CREATE TABLE {t} (id INT, s STRING) USING delta "
        "TBLPROPERTIES ('delta.feature.vacuumProtocolCheck'='supported')",
        "INSERT INTO {t} VALUES (1, 'a')",
        "INSERT OVERWRITE {t} VALUES (2, 'b')",
        "INSERT INTO {t} VALUES (3, 'c')",
        "VACUUM {t} RETAIN 0 HOURS",
    )


@hostile(refused="the log misses version 1 and has no checkpoint", on_stores=True)
def table_data_loss_no_checkpoint(at: Place) -> None:
    """A commit is lost and nothing stands for it: no version can be read."""
    some_commits(at, 4)
    at.forget(1)


@hostile(versions=(2, 3))
def table_data_loss_with_checkpoint(at: Place) -> None:
    """A commit is lost, but a checkpoint stands for it: from its version on the table is whole."""
    some_commits(at, 4, "'delta.checkpointInterval'='2'")
    at.forget(1)


@hostile(refused="the log has no metadata")
def table_with_no_metadata(at: Place) -> None:
    """A protocol and a file, but no metadata."""
    at.sql("CREATE TABLE {t} (id INT) USING delta", "INSERT INTO {t} VALUES (1)")
    at.rewrite(0, lambda action: [] if "metaData" in action else [action])


@hostile(refused="a reader feature that nobody knows")
def unknown_feature(at: Place) -> None:
    """The protocol asks for a feature of the future."""
    at.sql("CREATE TABLE {t} (id INT) USING delta", "INSERT INTO {t} VALUES (1)")
    asked = {"minReaderVersion": 3, "minWriterVersion": 7}
    features = {"readerFeatures": ["fromTheFuture"], "writerFeatures": ["fromTheFuture"]}
    at.rewrite(0, lambda action: [{"protocol": asked | features}] if "protocol" in action else [action])
