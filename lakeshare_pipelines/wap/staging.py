"""The interface between the steps and the two table formats, and the choice between them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.serveable import ClientMatrix
from lakeshare_pipelines.wap.staged import Staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Landed:
    """A set that reached main: per table what pins it there."""

    staged: Staged
    evidence: Mapping[str, object]
    nessie_hash: str | None
    versions: Mapping[str, int]  # Delta versions by table; empty for Iceberg


class Staging(Protocol):
    """Where a set waits for its audit, and how it gets from there to main."""

    def open(self, ref: str) -> str:
        """Make (or empty) the staging place and return the state of main it starts from."""

    def write(
        self,
        ref: str,
        table: Table,
        frame: "DataFrame",
        partitions: Sequence[str],
        properties: Mapping[str, str],
    ) -> None:
        """Replace the table's `partitions` on the staging place by `frame`."""

    def make_serveable(self, ref: str, table: Table) -> tuple[str, ...]:
        """Rewrite the staged table where clients could not read it that the contract promises it to.

        Returns the reason codes of what a rewrite took away; none where the contract does not ask for it.
        """

    def clients(self, staged: Staged, table: Table) -> ClientMatrix:
        """How each client would get the table as it will stand on main after publication."""

    def seal(self, ref: str) -> str:
        """The state just written, as `Staged.head`."""

    def rows_of_run(self, staged: Staged, table: Table) -> "DataFrame":
        """The rows this run wrote."""

    def count_written(self, staged: Staged, table: Table) -> int:
        """How many rows of the staging place are not main's: those of the run, in its partitions or out of them."""

    def table_after(self, staged: Staged, table: Table) -> "DataFrame":
        """The whole table as it will stand on main after publication."""

    def on_main(self, staged: Staged, table: Table) -> "DataFrame | None":
        """The table on main as the run found it; None before the first publication."""

    def definition(self, staged: Staged, table: Table) -> str | None:
        """The digest of what a view was defined as when it was made; None where nobody made it as a view."""

    def land(self, staged: Staged, evidence: Mapping[str, object]) -> Landed:
        """Make exactly `staged.head` main's state for every table of the set; half-done ones are completed.

        Raises:
            BranchMoved: the staging place is not at `staged.head` any more.
            Conflict: a table of the set changed on main since `staged.base`.
        """

    def owed(self, is_known: "LedgerKnows") -> list[Landed]:
        """Arrivals on main that the ledger does not have, oldest first; half-done ones are completed."""

    def waiting(self) -> list[tuple[str, datetime]]:
        """Staging places of this set that are not published, and when each was last written."""

    def discard(self, ref: str) -> None:
        """Remove the staging place; nothing happens when it is gone already, or when its set began to land."""


PROPERTY = "lakeshare."
"""How the names of our properties begin, in Nessie commits, Iceberg snapshots and Delta commits alike."""

DEFINITION = "view"
"""The property of an Iceberg table that keeps the digest of what its view was defined as."""


def commit_properties(staged: Staged, evidence: Mapping[str, object]) -> dict[str, str]:
    """What the commit on main says of the set that lands with it: enough to write the ledger from storage."""
    return {
        PROPERTY + "set": staged.set_name,
        PROPERTY + "run": staged.run_id,
        PROPERTY + "ref": staged.ref,
        PROPERTY + "audited": staged.head,
        PROPERTY + "staged": staged.as_json(),
        PROPERTY + "evidence": json.dumps(evidence, separators=(",", ":"), sort_keys=True),
    }


def said_by(properties: Mapping[str, Any]) -> tuple[Staged, Mapping[str, object]]:
    """The staged set and the evidence that `commit_properties` wrote."""
    staged = Staged.from_record(json.loads(properties[PROPERTY + "staged"]))
    return staged, json.loads(properties[PROPERTY + "evidence"])


def owed_run(properties: Mapping[str, Any], set_name: str) -> str | None:
    """The run of a set that landed with a commit; None for a commit of anybody else, or of a rollback."""
    if properties.get(PROPERTY + "set") != set_name or PROPERTY + "staged" not in properties:
        return None
    return str(properties[PROPERTY + "run"])


class LedgerKnows(Protocol):
    """How a format asks the ledger about one run of this set."""

    def __call__(self, run_id: str) -> bool:
        """Whether the run's publications are in the ledger."""


def staging_for(lake: Lake, contract: SetContract) -> Staging:
    """The staging of a set's format; all its tables have the same one."""
    from lakeshare_pipelines.wap.delta import DeltaStaging
    from lakeshare_pipelines.wap.iceberg import IcebergStaging

    formats = {table.format for table in contract.tables}
    if formats == {"iceberg"}:
        return IcebergStaging(lake, contract)
    if formats == {"delta"}:
        return DeltaStaging(lake, contract)
    raise ContractError(
        contract.path,
        "schema",
        f"set {contract.name} mixes the formats {', '.join(sorted(formats))}",
        "Tables that are published together have one format; make two sets of it.",
    )
