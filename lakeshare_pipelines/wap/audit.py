"""Audit: every check of a contract on one staged state, each with a verdict, whatever goes wrong in another.

Whether the verdicts are good enough to publish is decided where it is published.
"""

import logging

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import BranchMoved
from lakeshare_pipelines.spark.faults import explained
from lakeshare_pipelines.wap.checks import checks_of
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_pipelines.wap.staging import Staging, staging_for
from lakeshare_pipelines.wap.table_audit import TableAudit
from lakeshare_pipelines.wap.verdicts import Verdict, Verdicts

log = logging.getLogger(__name__)


def audit(lake: Lake, contract: SetContract, staged: Staged) -> Verdicts:
    """Judge a staged set: exactly the checks of `checks_of(contract)`, on `staged.head` and nothing else.

    Raises:
        BranchMoved: the staging place is not, or no more, at `staged.head`.
        SparkError: Spark died, or the disk is full; nothing is known about the rows.
        NessieError: the catalog is not there.
    """
    staging = staging_for(lake, contract)
    specs = checks_of(contract)
    verdicts: list[Verdict] = []
    with explained(lake.settings, f"auditing {staged.ref}"):
        _require_head(staging, staged)
        for table in contract.tables:
            of_table = [spec for spec in specs if spec.table == table.name]
            verdicts += TableAudit(lake, staging, contract, staged, table).verdicts(of_table)
        # The frames were read by the name of the place, not by the state it was in.
        _require_head(staging, staged)
    judged = Verdicts(staged.ref, staged.head, tuple(verdicts), contract.digest)
    for verdict in judged.failed:
        log.warning("%s failed (%s): %s", verdict.name, verdict.severity, verdict.reason)
    return judged


def _require_head(staging: Staging, staged: Staged) -> None:
    found = staging.seal(staged.ref)
    if found != staged.head:
        raise BranchMoved(staged.ref, staged.head, found)
