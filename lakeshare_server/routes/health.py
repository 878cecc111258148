"""Whether the process lives, and whether it can answer; for whoever watches over it, without a token."""

import logging
import os
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import SQLAlchemyError

from lakeshare_server.catalog import Allowances, Catalog
from lakeshare_server.catalog.database import HEAD
from lakeshare_server.errors import Unavailable
from lakeshare_server.outbound import SharedRefresh
from lakeshare_server.routes.context import Parts, PartsDep
from lakeshare_server.routes.metrics import may_read_metrics
from lakeshare_server.routes.pools import READINESS
from lakeshare_server.routes.responses import json_response
from lakeshare_server.settings import ServerSettings

# Writing is tried at most so often, however many probes come.
CHECK_S = 5.0
PROBE_BYTES = 1 << 16
# The row of the catalog that is written to find out whether it can be.
PROBE = "readyz"
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

router = APIRouter()
_log = logging.getLogger(__name__)


@router.get("/healthz", name="healthz")
async def healthz() -> Response:
    return json_response({"status": "ok"})


@router.get("/readyz", name="readyz")
async def readyz(request: Request, parts: PartsDep) -> Response:
    problems = await parts.pools.run(READINESS, _problems, parts)
    said: dict[str, Any] = {"status": "not ready" if problems else "ready", "reasons": problems}
    services = _services(request, parts)
    # Tables elsewhere are served all the same: this worker stays ready.
    if services:
        said["services"] = services
    return json_response(said, 503 if problems else 200)


class WriteCheck:
    """Whether the state folder and the database take writes; tried by one thread for all probes."""

    def __init__(self, catalog: Catalog, settings: ServerSettings) -> None:
        self._allowances, self._settings = Allowances(catalog), settings
        self._refresh = SharedRefresh(CHECK_S)
        self._found: list[str] = []

    def problems(self) -> list[str]:
        """What refuses writes, with the remedy."""
        self._refresh.run(self._look)
        return self._found

    def _look(self) -> None:
        self._found = [*self._of_folder(self._settings.state_dir), *self._of_database()]

    def _of_folder(self, folder: Path) -> list[str]:
        least = self._settings.min_free_bytes
        try:
            free = shutil.disk_usage(folder).free
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"\0" * PROBE_BYTES)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return [
                f"the state folder {folder} cannot be written: {error.strerror}. Make room, or check its mode"
            ]
        if free < least:
            return [
                f"the disk of the state folder {folder} has {free} bytes left, fewer than LAKESHARE_MIN_FREE_BYTES "
                f"({least}). Make room"
            ]
        return []

    def _of_database(self) -> list[str]:
        try:
            # A real write: a database whose disk is full takes locks and refuses pages.
            self._allowances.take(PROBE, PROBE, EPOCH, most=1 << 62, wanted=1)
        except (Unavailable, SQLAlchemyError) as error:
            _log.error("the database refuses a write (%s)", type(error).__name__)
            return ["the database refuses writes; the server's log says why. Check its disk and its mode"]
        return []


def _problems(parts: Parts) -> list[str]:
    problems = []
    try:
        revision = parts.catalog.revision()
        if revision != HEAD:
            problems.append(f"the catalog is at revision {revision}, this server needs {HEAD}: restart it")
        problems += parts.write_check.problems()
    except Unavailable as error:
        problems.append(str(error))
    folder = parts.settings.index_dir
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        problems.append(f"the file indexes in {folder} cannot be read: check the folder's mode")
    return problems


def _services(request: Request, parts: Parts) -> list[dict[str, Any]]:
    """The stores, catalogs and issuers that this worker gets no answers from; named to readers of metrics only."""
    outages = [state for state in parts.services.states() if state.outage is not None]
    if not may_read_metrics(request, parts.settings):
        return [{"unavailableForSeconds": round(state.outage_s)} for state in outages]
    return [
        {"name": state.name, "unavailableForSeconds": round(state.outage_s), "reason": state.outage}
        for state in outages
    ]
