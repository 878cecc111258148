"""Version polls of 10,000 recipients with 100,000 grants beside those of one: at most 0.5 ms more in the middle.

Run: `python -m bench.authorisation [RECIPIENTS]`. Two servers over two catalogs are asked by turns, one poll at a time;
the recipient of each poll is drawn anew. Each grant has a rule, an end, or both, and groups have grants too. Judged are
polls of recipients that were looked up since the last write to the catalog; the first one of each is told beside them.
"""

import os
import random
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import insert, select

from bench.server.ours import SCHEMA
from bench.server.processes import Running
from bench.server.stage import SERVE
from bench.server.turns import milliseconds, say
from bench.wide_table import many_files_table
from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    Ledger,
    NewPublication,
    SharedTable,
    apply_shares,
    open_catalog,
)
from lakeshare_server.catalog.credentials import new_token, token_digest
from lakeshare_server.catalog.models import (
    GrantRow,
    GroupGrantRow,
    GroupMemberRow,
    GroupRow,
    RecipientRow,
    ShareRow,
    TokenRow,
)
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables import describe_index, read_delta, write_index

RECIPIENTS, SHARES, GRANTS_EACH, GROUPS = 10_000, 200, 10, 100
POLLS, MOST_MORE_S = 30_000, 0.0005
ROWS_AT_ONCE = 5_000
HEAD_END = b"\r\n\r\n"
TABLE = f"{SCHEMA}.t"


@dataclass(frozen=True)
class Asker:
    """A recipient's token, and a share that it was granted."""

    token: str
    share: str


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
        with _server(folder / "one") as one, _server(folder / "many") as other:
            times = _by_turns((one, few), (other, many))
    alone, first, known = (median(times[name]) for name in ("alone", "first", "known"))
    more = known - alone
    grants = f"{recipients:,} recipients with {GRANTS_EACH * recipients:,} grants"
    print(f"poll of the only recipient {milliseconds(alone)}, of {grants} {milliseconds(known)}")
    print(f"the first poll of each of them {milliseconds(first)}")
    print(f"{milliseconds(more) if more > 0 else 'nothing'} more, at most {milliseconds(MOST_MORE_S)}")
    return 0 if more <= MOST_MORE_S else 1


def _by_turns(
    one: tuple[Running, list[Asker]], many: tuple[Running, list[Asker]]
) -> Mapping[str, list[float]]:
    """Seconds of polls: of the only recipient, of one that was not seen before, and of one that was."""
    say(f"{POLLS:,} polls of each server by turns")
    draw, seen = random.Random(1), set()
    times: dict[str, list[float]] = {"alone": [], "first": [], "known": []}
    with closing(_Connection(one[0])) as alone, closing(_Connection(many[0])) as others:
        alone.poll(one[1][0])
        for _ in range(POLLS):
            times["alone"].append(alone.poll(one[1][0]))
            token_holder = draw.choice(many[1])
            times["known" if token_holder in seen else "first"].append(others.poll(token_holder))
            seen.add(token_holder)
    return times


class _Connection:
    """One connection that is kept, so that little but the server's own time is measured."""

    def __init__(self, server: Running) -> None:
        self._prefix = server.prefix
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def poll(self, token_holder: Asker) -> float:
        path = f"{self._prefix}shares/{token_holder.share}/schemas/{SCHEMA}/tables/t/version"
        head = f"GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token_holder.token}\r\n\r\n".encode()
        began = time.perf_counter()
        self._socket.sendall(head)
        answer = b""
        while HEAD_END not in answer:
            answer += self._socket.recv(65_536)
        elapsed_s = time.perf_counter() - began
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode("latin-1"))
        return elapsed_s

    def close(self) -> None:
        self._socket.close()


@contextmanager
def _server(state_dir: Path) -> Iterator[Running]:
    environment = {**os.environ, "LAKESHARE_STATE_DIR": str(state_dir)}
    server = Running(SERVE, environment, state_dir / "server.log")
    try:
        yield server
    finally:
        server.stop()


def _published(state_dir: Path, table: Path, recipients: int) -> list[Asker]:
    """A catalog with a published table in each share, and so many recipients."""
    say(f"a catalog of {recipients:,} recipients")
    settings = ServerSettings(state_dir=state_dir)
    with closing(open_catalog(settings.catalog_url)) as catalog:
        snapshot = read_delta(str(table))
        index = write_index(snapshot, settings.index_dir)
        publication = NewPublication(
            table=TABLE,
            set_name=SCHEMA,
            format="delta",
            delta_version=snapshot.version,
            **describe_index(snapshot, index),
            index_digest=index.digest,
            contract_digest="",
            verdicts={},
            run_id="bench",
            partition="all",
        )
        Ledger(catalog).append([publication])
        names = [f"s{number}" for number in range(SHARES)]
        apply_shares(catalog, [DeclaredShare(name, (SharedTable(SCHEMA, "t", TABLE),)) for name in names])
        return _granted(catalog, recipients)


def _granted(catalog: Catalog, recipients: int) -> list[Asker]:
    """Recipients with their tokens, groups and grants, written at once: one by one takes minutes."""
    now, draw = datetime.now(UTC), random.Random(0)
    tokens = [new_token() for _ in range(recipients)]
    with catalog.writing() as session:
        shares = {row.key: row.name for row in session.scalars(select(ShareRow))}

        def put(model: Any, rows: list[dict[str, Any]]) -> None:  # of any model
            for start in range(0, len(rows), ROWS_AT_ONCE):
                session.execute(insert(model), rows[start : start + ROWS_AT_ONCE])

        def terms(number: int) -> dict[str, Any]:
            rule = "id = 1" if number % 2 else None
            ends_at = now + timedelta(days=1) if number % 3 == 0 or rule is None else None
            return {"created_at": now, "rule": rule, "ends_at": ends_at, "applied": False}

        put(RecipientRow, [{**_named("r", one, now), "authentication": "TOKEN"} for one in range(recipients)])
        put(GroupRow, [_named("g", one, now) for one in range(GROUPS)])
        keys = list(session.scalars(select(RecipientRow.key).order_by(RecipientRow.key)))
        groups = list(session.scalars(select(GroupRow.key).order_by(GroupRow.key)))
        token_rows = [
            {
                "id": str(uuid.uuid4()),
                "recipient_key": key,
                "digest": token_digest(token),
                "created_at": now,
                "kind": "bearer",
            }
            for key, token in zip(keys, tokens, strict=True)
        ]
        put(TokenRow, token_rows)
        chosen = {key: draw.sample(sorted(shares), GRANTS_EACH) for key in keys}
        put(GrantRow, [
            {"recipient_key": key, "share_key": share, **terms(key + share)}
            for key, of_it in chosen.items() for share in of_it
        ])  # fmt: skip
        put(GroupMemberRow, [{"group_key": groups[key % GROUPS], "recipient_key": key} for key in keys])
        put(GroupGrantRow, [
            {"group_key": group, "share_key": share, **terms(share)}
            for group in groups for share in draw.sample(sorted(shares), GRANTS_EACH)
        ])  # fmt: skip
        return [Asker(token, shares[chosen[key][0]]) for key, token in zip(keys, tokens, strict=True)]


def _named(kind: str, number: int, now: datetime) -> dict[str, Any]:
    name = f"{kind}{number}"
    return {
        "id": str(uuid.uuid4()),
        "name": name,
        "name_key": name,
        "created_at": now,
        "revision": 1,
        "applied": False,
    }


if __name__ == "__main__":
    sys.exit(main())
