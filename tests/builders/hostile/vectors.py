"""Tables with deletion vectors: relative, absolute, inline, many in one file, every container of a bitmap, with CDF."""

from tests.builders.deletion_vector import inline_descriptor, relative_path
from tests.builders.delta_log import Action, read_state
from tests.builders.hostile.place import DELETION_VECTORS, Place, hostile

ON = "'delta.enableDeletionVectors'='true'"


def two_files(at: Place, properties: str = ON) -> None:
    """Two files, then a commit that deletes rows of both: two vectors in one file."""
    at.sql(
        f"CREATE TABLE {{t}} (id INT, s STRING) USING delta TBLPROPERTIES ({properties})",
        "INSERT INTO {t} SELECT id, concat('first ', id) FROM range(6)",
        "INSERT INTO {t} SELECT id, concat('second ', id) FROM range(10)",
        "DELETE FROM {t} WHERE id IN (1, 2)",
    )


@hostile(versions=(2, 5), needs=DELETION_VECTORS)
def dv_relative(at: Place) -> None:
    """Vectors of type `u`, two of them in one file; one is replaced by a later one; an UPDATE on top."""
    two_files(at)
    at.sql("DELETE FROM {t} WHERE s = 'first 3'", "UPDATE {t} SET s = 'updated' WHERE id = 5")


@hostile(versions=(3,), needs=DELETION_VECTORS, on_stores=True)
def dv_absolute(at: Place) -> None:
    """Vectors of type `p`: a file outside of the table, with a blank and a percent sign in its name."""
    two_files(at)
    beside = at.beside("vectors")

    def moved(action: Action) -> list[Action]:
        vector = action.get("add", {}).get("deletionVector")
        if vector:
            file = at.location / relative_path(vector["pathOrInlineDv"])
            target = beside / f"100% {file.name}"
            if file.exists():
                file.rename(target)
            vector |= {"storageType": "p", "pathOrInlineDv": target.as_uri()}
        return [action]

    at.rewrite(3, moved)


@hostile(versions=(1, 2), needs=DELETION_VECTORS)
def dv_inline(at: Place) -> None:
    """A vector in the log itself, type `i`, beside a file without one."""
    at.sql(
        f"CREATE TABLE {{t}} (id INT, s STRING) USING delta TBLPROPERTIES ({ON})",
        "INSERT INTO {t} SELECT /*+ REPARTITION(2) */ id, concat('row ', id) FROM range(40)",
    )
    first, *_ = read_state(at.location).adds
    removed = {"path": first["path"], "deletionTimestamp": 1, "dataChange": True, "size": first["size"]}
    removed |= {"extendedFileMetadata": True, "partitionValues": {}}
    at.commit(2, [{"remove": removed}, {"add": first | {"deletionVector": inline_descriptor([0, 3, 7])}}])


@hostile(versions=(4,), needs=DELETION_VECTORS, on_stores=True)
def dv_partitioned(at: Place) -> None:
    """Vectors in a partitioned table, with a prefix in front of their names; one partition loses all its rows."""
    at.sql(
        f"CREATE TABLE {{t}} (id INT, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES ({ON},"
        "'delta.randomizeFilePrefixes'='true', 'delta.randomPrefixLength'='2')",
        "INSERT INTO {t} SELECT id, CASE id % 3 WHEN 0 THEN 'a b' WHEN 1 THEN 'c%d' END FROM range(12)",
        "DELETE FROM {t} WHERE id IN (0, 1, 2)",
        "DELETE FROM {t} WHERE p = 'a b'",
        "INSERT INTO {t} VALUES (100, 'a b')",
    )


@hostile(versions=(3, 5), needs_at={3: DELETION_VECTORS})
def dv_switched_off(at: Place) -> None:
    """The property is off and all vectors are purged: the feature stays in the protocol, parquet can carry it."""
    two_files(at)
    at.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors'='false')",
        "REORG TABLE {t} APPLY (PURGE)",
    )


@hostile(versions=(2,), needs=DELETION_VECTORS)
def dv_every_container(at: Place) -> None:
    """One vector over three blocks of 65,536 rows: a bitset, a run and an array."""
    at.sql(
        f"CREATE TABLE {{t}} (id INT) USING delta TBLPROPERTIES ({ON})",
        "INSERT INTO {t} SELECT id FROM range(0, 140000, 1, 1)",
        "DELETE FROM {t} WHERE (id < 65536 AND id % 2 = 1) OR id BETWEEN 65536 AND 131000 "
        "OR id IN (131072, 131080, 139999) OR id < 20000",
    )


@hostile(versions=(2, 5), cdf=((0, 5), (3, 4)), needs=DELETION_VECTORS)
def dv_changes(at: Place) -> None:
    """Changes without cdc files: RESTORE swaps a vector, so the changed rows are the difference of two vectors."""
    at.sql(
        f"CREATE TABLE {{t}} (id INT, s STRING) USING delta TBLPROPERTIES ({ON},"
        "'delta.enableChangeDataFeed'='true')",
        "INSERT INTO {t} SELECT id, concat('row ', id) FROM range(8)",
        "DELETE FROM {t} WHERE id < 2",
        "DELETE FROM {t} WHERE id = 5",
        "RESTORE TABLE {t} TO VERSION AS OF 2",
        "UPDATE {t} SET s = 'updated' WHERE id = 3",
    )


@hostile(versions=(2, 4), cdf=((0, 4),), needs=DELETION_VECTORS)
def dv_row_tracking(at: Place) -> None:
    """Vectors and row ids together: a file that lost rows keeps its base id, an updated row its own."""
    at.sql(
        f"CREATE TABLE {{t}} (id INT, s STRING) USING delta TBLPROPERTIES ({ON}, 'delta.enableRowTracking'='true',"
        "'delta.enableChangeDataFeed'='true')",
        "INSERT INTO {t} SELECT id, concat('row ', id) FROM range(8)",
        "DELETE FROM {t} WHERE id < 2",
        "UPDATE {t} SET s = 'updated' WHERE id = 3",
        "OPTIMIZE {t}",
    )


@hostile(versions=(1, 4), cdf=((0, 4), (1, 3)), needs_at={4: DELETION_VECTORS})
def dv_switched_on(at: Place) -> None:
    """Vectors are switched on within the range of changes: its first versions have a protocol without them."""
    at.sql(
        "CREATE TABLE {t} (id INT, s STRING) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed'='true')",
        "INSERT INTO {t} SELECT id, concat('row ', id) FROM range(8)",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors'='true')",
        "DELETE FROM {t} WHERE id < 2",
        "INSERT INTO {t} VALUES (9, 'nine')",
    )
