"""What all measurements stand on: the tables, the servers over them, and how each is asked."""

import http.client
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.server.load import Ask
from bench.server.ours import Provided, publish, table_path
from bench.server.processes import Running
from bench.server.tables import big_table
from bench.server.turns import say

SERVE = ["lakeshare_server", "serve", "--port", "0"]
COPY_BYTES = 1 << 20
NAIVE_TABLES = "/shares/naive/schemas/default/tables"


@dataclass(frozen=True)
class Plan:
    """How much is measured. The sizes are in files, ascending."""

    sizes: tuple[int, ...]
    clients: tuple[int, ...]
    turns: int
    window_s: float
    # Naive answers are slow, and cut off after this long.
    naive_window_s: float
    workers: int
    cache: Path

    @property
    def small(self) -> int:
        """The size that growth is counted from."""
        return 10_000 if 10_000 in self.sizes else self.sizes[0]

    @property
    def middle(self) -> int:
        """The size that most goals speak of."""
        return 100_000 if 100_000 in self.sizes else self.sizes[-2]

    @property
    def big(self) -> int:
        """The size that growth is counted to."""
        return self.sizes[-1]

    @property
    def log(self) -> Path:
        """What the servers say beside their answers."""
        return self.cache / "servers.log"


@dataclass
class Stage:
    """The servers, started when they are first asked, all of them over the same tables."""

    plan: Plan
    provided: Provided
    ours: Running
    _stack: ExitStack
    _limits: dict[str, Running] = field(default_factory=dict)
    _naive: Running | None = None
    _empty: Running | None = None

    def location(self, files: int) -> Path:
        """The table of that many files."""
        return big_table(self.plan.cache, files)

    def table(
        self,
        files: int,
        call: str,
        body: object | None = None,
        server: Running | None = None,
        where: str = "",
    ) -> Ask:
        """A call of ours on a table, by one client; `where` is "" or `ON_S3`."""
        server = server or self.ours
        return Ask(
            port=server.port,
            path=f"{server.prefix}{table_path(name_of(files) + where)}/{call}",
            token=self.provided.token,
            body=None if body is None else json.dumps(body),
        )

    def listing(self) -> Ask:
        """The listing call of ours that others are compared with."""
        path = f"{self.ours.prefix}shares/bench/all-tables"
        return Ask(port=self.ours.port, path=path, token=self.provided.token)

    def limit(self, files: int, where: str = "") -> Ask:
        """The answer of a full query, by the limit."""
        return Ask(port=self.limit_server(files, where).port, path="/")

    def limit_server(self, files: int, where: str = "") -> Running:
        """The process of the limit."""
        name = name_of(files) + where
        if name not in self._limits:
            capture = self.capture(files, where)
            _capture(self.table(files, "query", {}, where=where), capture)
            words = [str(capture), str(self.provided.state_dir), self.ours.origin]
            self._limits[name] = self._started(["bench.server.limit", *words])
        return self._limits[name]

    def capture(self, files: int, where: str = "") -> Path:
        """The answer of ours that the limit was made from."""
        return self.plan.cache / f"{name_of(files)}{where}.ndjson"

    def naive(self, files: int, body: object) -> Ask:
        """A query, by the naive server."""
        if self._naive is None:
            locations = [str(self.location(size)) for size in self.plan.sizes]
            self._naive = self._started(["bench.naive_server", "--port", "0", "--table", *locations])
        path = f"{NAIVE_TABLES}/{self.location(files).name}/query"
        return Ask(port=self._naive.port, path=path, token="naive", body=json.dumps(body))

    def naive_server(self) -> Running:
        """The process of the naive server."""
        if self._naive is None:
            raise AssertionError("ask the naive server first")
        return self._naive

    def restart_naive(self) -> None:
        """Let the naive server forget what it was asked: it goes on for minutes after its clients have left."""
        if self._naive is not None:
            self._naive.stop()
            self._naive = None

    def empty(self) -> Ask:
        """A request that is answered with nothing."""
        if self._empty is None:
            self._empty = self._started(["bench.server.empty_route", str(self.plan.workers)])
        return Ask(port=self._empty.port, path="/version")

    @contextmanager
    def another(self) -> Iterator[Running]:
        """One more server of ours over the same state, for as long as it is needed."""
        server = Running(SERVE, self.provided.environment, self.plan.log)
        try:
            yield server
        finally:
            server.stop()

    def _started(self, words: list[str]) -> Running:
        server = Running(words, self.provided.environment, self.plan.log)
        self._stack.callback(server.stop)
        return server


@contextmanager
def on_stage(plan: Plan) -> Iterator[Stage]:
    """Make what is missing of the tables, publish them, and start our server."""
    plan.cache.mkdir(parents=True, exist_ok=True)
    plan.log.unlink(missing_ok=True)
    locations = {}
    for files in plan.sizes:
        say(f"table of {files:,} files")
        locations[name_of(files)] = big_table(plan.cache, files)
    say("publishing them")
    state_dir = plan.cache / "state"
    shutil.rmtree(state_dir, ignore_errors=True)
    provided = publish(state_dir, locations, name_of(plan.middle))
    with ExitStack() as stack:
        ours = Running(SERVE, provided.environment, plan.log)
        stack.callback(ours.stop)
        yield Stage(plan, provided, ours, stack)


def name_of(files: int) -> str:
    """The name of the published table of that many files."""
    return f"files_{files}"


def _capture(ask: Ask, target: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", ask.port, timeout=600)
    connection.request("POST", ask.path, ask.body, {"Authorization": f"Bearer {ask.token}"})
    with connection.getresponse() as answer, target.open("wb") as file:
        if answer.status != http.client.OK:
            raise RuntimeError(f"{ask.path} was answered {answer.status}")
        shutil.copyfileobj(answer, file, COPY_BYTES)
    connection.close()
