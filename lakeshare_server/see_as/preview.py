"""The first rows that a recipient reads, as the portal shows them to it."""

from lakeshare_server.see_as.eyes import Eyes
from lakeshare_server.settings import PORTAL_PATH


async def first_rows(
    eyes: Eyes, path: str, count: int, version: int | None
) -> tuple[list[str], list[list[str]]]:
    """The columns, and at most so many rows as texts on one line each.

    Raises:
        Refused: the recipient is refused the rows, or a file cannot be read.
    """
    url = eyes.client.base_url.join(f"{PORTAL_PATH}/api/{path}/preview")
    told = (await eyes.get(str(url), limit=count, version=version)).json()
    columns = [column["name"] for column in told["columns"]]
    return columns, [[" ".join((text or "").split()) for text in row] for row in told["rows"]]
