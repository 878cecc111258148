"""Version polls of 10,000 recipients with 100,000 grants beside those of one: at most 0.5 ms more in the middle.

Run: `python -m bench.authorisation [RECIPIENTS]`. Two servers over two catalogs are asked by turns, one poll at a time;
the recipient of each poll is drawn anew. Each grant has a rule, an end, or both, and groups have grants too. Judged are
polls of recipients that were looked up since the last write to the catalog; the first one of each is told beside them.
"""

import random
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import select

from bench.server.catalogs import Connection, TokenHolder, add_recipients, add_rows, named_row, serving
from bench.server.ours import SCHEMA, new_publication
from bench.server.processes import Running
from bench.server.turns import milliseconds, say
from bench.wide_table import many_files_table
from lakeshare_server.catalog import Catalog, DeclaredShare, Ledger, SharedTable, apply_shares, open_catalog
from lakeshare_server.catalog.models import GrantRow, GroupGrantRow, GroupMemberRow, GroupRow, ShareRow
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables import read_delta

RECIPIENTS, SHARES, GRANTS_EACH, GROUPS = 10_000, 200, 10, 100
POLLS, MOST_MORE_S = 30_000, 0.0005
TABLE = f"{SCHEMA}.t"


def main() -> int:
    """Print both medians and fail when they are further apart than they may be."""
    recipients = int(sys.argv[1]) if len(sys.argv) > 1 else RECIPIENTS
    with tempfile.TemporaryDirectory(prefix="lakeshare-authorisation-") as scratch:
        folder = Path(scratch)
        many_files_table(folder / "table", 10)
        few, many = (
            _published(folder / name, folder / "table", count)
            for name, count in (("one", 1), ("many", recipients))
        )
        with serving(folder / "one") as one, serving(folder / "many") as other:
            times = _by_turns((one, few), (other, many))
    alone, first, known = (median(times[name]) for name in ("alone", "first", "known"))
    more = known - alone
    grants = f"{recipients:,} recipients with {GRANTS_EACH * recipients:,} grants"
    print(f"poll of the only recipient {milliseconds(alone)}, of {grants} {milliseconds(known)}")
    print(f"the first poll of each of them {milliseconds(first)}")
    print(f"{milliseconds(more) if more > 0 else 'nothing'} more, at most {milliseconds(MOST_MORE_S)}")
    return 0 if more <= MOST_MORE_S else 1


def _by_turns(
    one: tuple[Running, list[TokenHolder]], many: tuple[Running, list[TokenHolder]]
) -> Mapping[str, list[float]]:
    """Seconds of polls: of the only recipient, of one that was not seen before, and of one that was."""
    say(f"{POLLS:,} polls of each server by turns")
    draw, seen = random.Random(1), set()
    times: dict[str, list[float]] = {"alone": [], "first": [], "known": []}
    with closing(Connection(one[0])) as alone, closing(Connection(many[0])) as others:
        _poll(alone, one[1][0])
        for _ in range(POLLS):
            times["alone"].append(_poll(alone, one[1][0]))
            token_holder = draw.choice(many[1])
            times["known" if token_holder in seen else "first"].append(_poll(others, token_holder))
            seen.add(token_holder)
    return times


def _poll(connection: Connection, holder: TokenHolder) -> float:
    path = f"shares/{holder.share}/schemas/{SCHEMA}/tables/t/version"
    return connection.seconds(path, holder.token)


def _published(state_dir: Path, table: Path, recipients: int) -> list[TokenHolder]:
    """A catalog with a published table in each share, and so many recipients."""
    say(f"a catalog of {recipients:,} recipients")
    settings = ServerSettings(state_dir=state_dir)
    with closing(open_catalog(settings.catalog_url)) as catalog:
        Ledger(catalog).append([new_publication(settings, "t", read_delta(str(table)))])
        names = [f"s{number}" for number in range(SHARES)]
        apply_shares(catalog, [DeclaredShare(name, (SharedTable(SCHEMA, "t", TABLE),)) for name in names])
        return _granted(catalog, recipients)


def _granted(catalog: Catalog, recipients: int) -> list[TokenHolder]:
    """Recipients with their tokens, groups and grants, written at once: one by one takes minutes."""
    now, draw = datetime.now(UTC), random.Random(0)

    def terms(number: int) -> dict[str, Any]:
        rule = "id = 1" if number % 2 else None
        ends_at = now + timedelta(days=1) if number % 3 == 0 or rule is None else None
        return {"created_at": now, "rule": rule, "ends_at": ends_at, "applied": False}

    with catalog.writing() as session:
        shares = {row.key: row.name for row in session.scalars(select(ShareRow))}
        tokens = add_recipients(session, recipients, now)
        chosen = {key: draw.sample(sorted(shares), GRANTS_EACH) for key in tokens}
        add_rows(session, GroupRow, (named_row(f"g{one}", now) for one in range(GROUPS)))
        groups = list(session.scalars(select(GroupRow.key).order_by(GroupRow.key)))
        add_rows(session, GrantRow, (
            {"recipient_key": key, "share_key": share, **terms(key + share)}
            for key, of_it in chosen.items() for share in of_it
        ))  # fmt: skip
        add_rows(
            session,
            GroupMemberRow,
            ({"group_key": groups[key % GROUPS], "recipient_key": key} for key in tokens),
        )
        add_rows(session, GroupGrantRow, (
            {"group_key": group, "share_key": share, **terms(share)}
            for group in groups for share in draw.sample(sorted(shares), GRANTS_EACH)
        ))  # fmt: skip
    return [TokenHolder(token, shares[chosen[key][0]]) for key, token in tokens.items()]


if __name__ == "__main__":
    sys.exit(main())
