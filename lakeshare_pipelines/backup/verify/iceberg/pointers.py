"""Which metadata file of each table the catalog had at a moment: the states of Nessie's main.

Branches write their metadata files beside those of main, so that the newest file may be one that nobody published.
"""

import datetime as dt

from lakeshare_pipelines.nessie.client import Nessie
from lakeshare_pipelines.nessie.process import nessie_dir
from lakeshare_pipelines.nessie.server import ensure_nessie
from lakeshare_pipelines.settings import LakeSettings

MAIN = "main"


def pointers_of_main(settings: LakeSettings, as_of: dt.datetime) -> tuple[str, ...]:
    """Locations of the metadata files of all Iceberg tables of main, as the newest commit before `as_of` has them.

    Empty where no Nessie belongs to these settings, or nothing was committed before.

    Raises:
        NessieError: it refuses, or does not answer.
    """
    if settings.nessie_uri is None and not nessie_dir(settings).exists():
        return ()
    nessie = Nessie.connect(ensure_nessie(settings), "writer")
    before = next((commit for commit in nessie.history(MAIN) if commit.committed_at < as_of), None)
    if before is None:
        return ()
    at = f"{MAIN}@{before.hash}"
    contents = (nessie.content(table, at) for table in nessie.tables(at))
    return tuple(content.metadata_location for content in contents if content is not None)
