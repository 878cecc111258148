"""Change files that no publication names: what a crash or a conflict left behind, removed by the janitor.

A folder that a publication of the ledger names is never touched: recipients read from it (design, rule 8).
"""

import logging
import shutil
import time
from pathlib import Path

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.share.repair import pay_debts
from lakeshare_pipelines.share.table_state import CHANGES_FOLDER
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_server.catalog import Catalog, Ledger, Publication, set_lock
from lakeshare_server.tables.delta.change_segment import open_segment
from lakeshare_server.tables.iceberg.change_index import change_files_of
from lakeshare_server.tables.index import index_path

DAY_S = 24 * 3600

log = logging.getLogger(__name__)


def drop_abandoned(lake: Lake, catalog: Catalog, contract: SetContract, wait_s: float = 0) -> list[str]:
    """Remove the folders of change files of a set that no publication names, older than `branch_days`.

    Tables in other stores than the local disk are left alone. Returns the folders.

    Raises:
        CatalogConflict: a run of the set is publishing right now.
    """
    dropped = []
    with set_lock(catalog, contract.name, "janitor", wait_s) as lease:
        ledger = Ledger(catalog)
        # What is on main already, and not in the ledger, names folders, too.
        pay_debts(lake, ledger, contract, lease)
        for table in contract.tables:
            for folder in _abandoned(lake, ledger, table):
                log.info("removing change files that no publication names: %s", folder)
                shutil.rmtree(folder)
                dropped.append(str(folder))
    return dropped


def _abandoned(lake: Lake, ledger: Ledger, table: Table) -> list[Path]:
    history = ledger.history(table.name)
    horizon = time.time() - lake.settings.branch_days * DAY_S
    places = {Path(one.location) / CHANGES_FOLDER for one in history if one.location.startswith("/")}
    folders = [folder for place in sorted(places) if place.is_dir() for folder in sorted(place.iterdir())]
    old = [folder for folder in folders if folder.stat().st_mtime <= horizon]
    if not old:
        return []
    named = _named_files(lake, history)
    if named is None:
        log.warning("the change files of %s stay: not all indexes of changes can be read", table.name)
        return []
    return [folder for folder in old if not any(path.startswith(f"{folder}/") for path in named)]


def _named_files(lake: Lake, history: list[Publication]) -> list[str] | None:
    """The change files that publications name; None when that cannot be told of all of them."""
    found: list[str] = []
    for one in history:
        if one.changes_digest is not None:
            try:
                segment = open_segment(index_path(lake.settings.index_dir, one.changes_digest))
                found += change_files_of(segment, one.version)
            except (OSError, KeyError, TypeError, ValueError):
                return None
    return found
