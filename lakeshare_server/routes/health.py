"""Whether the process lives, and whether it can answer; for whoever watches over it, without a token."""

import os

from fastapi import APIRouter, Response

from lakeshare_server.catalog.database import HEAD
from lakeshare_server.errors import Unavailable
from lakeshare_server.routes.context import Parts, PartsDep
from lakeshare_server.routes.responses import json_response

router = APIRouter()


@router.get("/healthz", name="healthz")
async def healthz() -> Response:
    return json_response({"status": "ok"})


@router.get("/readyz", name="readyz")
def readyz(parts: PartsDep) -> Response:
    problems = _problems(parts)
    if problems:
        return json_response({"status": "not ready", "reasons": problems}, 503)
    return json_response({"status": "ready", "reasons": []})


def _problems(parts: Parts) -> list[str]:
    problems = []
    try:
        revision = parts.catalog.revision()
        if revision != HEAD:
            problems.append(f"the catalog is at revision {revision}, this server needs {HEAD}: restart it")
    except Unavailable as error:
        problems.append(str(error))
    folder = parts.settings.index_dir
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        problems.append(f"the file indexes in {folder} cannot be read: check the folder's mode")
    return problems
