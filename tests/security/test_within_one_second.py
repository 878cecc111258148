"""What a provider changes holds for the next request in each of two workers, and on each of two hosts with one
database: a client in a loop sees it at once.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx
import psutil
import pytest

from lakeshare_server.app import WORKER_ANSWER_S
from lakeshare_server.catalog.credentials import revoke_token, rotate_token
from lakeshare_server.catalog.sharing import alter_recipient, editing, grant, revoke, revoke_recipient
from tests.builders.campaign import IS_CAMPAIGN
from tests.builders.credentials import OAUTH, Known, a_recipient, ask_token
from tests.builders.lake_tables import FIRST_DAY
from tests.builders.server_process import a_host, a_process
from tests.builders.sharing import FLIGHTS, Provider, Running, a_provider_of_flights
from tests.integration.postgres_server import PostgresServer

WORKERS = 2
QUERY = f"{FLIGHTS}/query"
ONE_SECOND = 1.0
DEPLOYMENTS = ("workers", "hosts")
PATIENCE_S, PAUSE_S = 60, 0.05


@dataclass(frozen=True)
class Workers:
    """A server with two workers, or two hosts with one database, and one connection to each of them."""

    deployment: str
    provider: Provider
    running: Running
    connections: list[httpx.Client]

    def statuses(self, token: str) -> list[int]:
        """What each worker answers."""
        headers = {"Authorization": f"Bearer {token}"}
        return [one.post(QUERY, json={}, headers=headers).status_code for one in self.connections]

    def files(self, token: str) -> list[int]:
        """How many files each worker answers with."""
        headers = {"Authorization": f"Bearer {token}"}
        answers = [one.post(QUERY, json={}, headers=headers) for one in self.connections]
        return [answer.text.count('"url"') for answer in answers]


@pytest.fixture(scope="module", params=DEPLOYMENTS)
def workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "workers":
            provider = a_provider_of_flights(folder)
            process, url = stack.enter_context(a_process(provider, "--workers", str(WORKERS)))
            connections = one_to_each(process.pid, url)
        else:
            postgres: PostgresServer = request.getfixturevalue("postgres")
            provider = a_provider_of_flights(folder, database_url=postgres.new_database())
            hosts = [stack.enter_context(a_host(provider, f"host {number}")) for number in range(WORKERS)]
            process, url = hosts[0]
            connections = [httpx.Client(base_url=host[1], timeout=PATIENCE_S, verify=False) for host in hosts]
        for connection in connections:
            stack.callback(connection.close)
        yield Workers(request.param, provider, Running(url, provider.settings.state_dir), connections)
        process.terminate()
        # Before a supervisor would kill a worker that does not answer. A process without workers ends by the signal.
        ended = process.wait(WORKER_ANSWER_S / 2)
        assert ended == (0 if request.param == "workers" else -signal.SIGTERM)


def one_to_each(parent: int, url: str) -> list[httpx.Client]:
    """A connection to each worker, found among many; the others are closed."""
    kept: dict[int, httpx.Client] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(kept) < WORKERS:
        assert time.monotonic() < deadline, f"only {len(kept)} workers answered"
        # No certificate is looked at; to be ready for that would take longer than all else.
        client = httpx.Client(base_url=url, timeout=PATIENCE_S, verify=False)
        with client.stream("GET", "/nothing") as answer:
            port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
            owner = owner_of(parent, port)
        if owner is None or owner in kept:
            client.close()
        else:
            kept[owner] = client
    return list(kept.values())


def owner_of(parent: int, port: int) -> int | None:
    """Which child of the server has the other end of a connection from this port."""
    for child in psutil.Process(parent).children():
        if any(one.raddr and one.raddr.port == port for one in child.net_connections("tcp")):
            return child.pid
    return None


def seen_after(workers: Workers, change: Callable[[], object], is_seen: Callable[[], bool]) -> float:
    """How long it took from the change until every worker showed it, and went on showing it."""
    assert not is_seen()
    change()
    changed_at = time.monotonic()
    seen_at = changed_at
    count = 0
    while count < 5:
        assert time.monotonic() - changed_at < PATIENCE_S, "it is not seen"
        if is_seen():
            count += 1
        else:
            count, seen_at = 0, time.monotonic()
    return seen_at - changed_at


def edited(workers: Workers, operation: Callable[..., object], *given: object, **fields: object) -> None:
    with editing(workers.provider.catalog, "tests") as edit:
        operation(edit, *given, **fields)


CHANGES: dict[str, tuple[int, Callable[[Workers, Known], object]]] = {
    "revocation": (401, lambda at, known: edited(at, revoke_recipient, known.state.name)),
    "revocation of a token": (
        401,
        lambda at, known: edited(at, revoke_token, known.state.name, known.given and known.given.state.id),
    ),
    "rotation": (401, lambda at, known: edited(at, rotate_token, known.state.name)),
    "an end in the past": (
        401,
        lambda at, known: edited(at, alter_recipient, known.state.name, expires_at=datetime.now(UTC)),
    ),
    "an address list": (
        403,
        lambda at, known: edited(at, alter_recipient, known.state.name, ip_allow=["192.0.2.0/24"]),
    ),
    "the end of a grant": (404, lambda at, known: edited(at, revoke, "flights", recipient=known.state.name)),
    "a grant that has ended": (
        404,
        lambda at, known: edited(at, grant, "flights", recipient=known.state.name, ends_at=datetime.now(UTC)),
    ),
}


AUTHENTICATIONS = ("TOKEN", OAUTH)


@pytest.mark.campaign
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_by_every_worker(workers: Workers, change: str) -> None:
    """One way to authenticate with workers and the other one with hosts; in the campaign both with both."""
    turn = (DEPLOYMENTS.index(workers.deployment) + list(CHANGES).index(change)) % len(AUTHENTICATIONS)
    for authentication in AUTHENTICATIONS if IS_CAMPAIGN else AUTHENTICATIONS[turn : turn + 1]:
        require_seen(workers, change, authentication)


def require_seen(workers: Workers, change: str, authentication: str) -> None:
    status, make = CHANGES[change]
    known = a_recipient(workers.provider, f"{change} {authentication}".replace(" ", "-"), authentication)
    token = known.secret
    if authentication == OAUTH:
        token = ask_token(workers.running, known).json()["access_token"]
    took_s = seen_after(
        workers, lambda: make(workers, known), lambda: workers.statuses(token) == [status] * WORKERS
    )
    assert took_s < ONE_SECOND


def test_a_new_rule_is_seen_by_every_worker(workers: Workers) -> None:
    known = a_recipient(workers.provider, "ruled")
    assert workers.files(known.secret) == [3] * WORKERS
    took_s = seen_after(
        workers,
        lambda: edited(workers, grant, "flights", recipient="ruled", rule=f"day = '{FIRST_DAY}'"),
        lambda: workers.files(known.secret) == [1] * WORKERS,
    )
    assert took_s < ONE_SECOND


def test_an_end_that_was_set_before_is_kept_by_every_worker(workers: Workers) -> None:
    """That of a token, of a recipient and of a grant."""
    waiting: dict[str, tuple[str, datetime]] = {}
    for ending in ("token", "recipient", "grant"):
        known = a_recipient(workers.provider, f"ending-{ending}")
        token, ends_at = known.secret, datetime.now(UTC) + timedelta(seconds=1)
        if ending == "token":
            with editing(workers.provider.catalog, "tests") as edit:
                token = rotate_token(edit, known.state.name, expires_at=ends_at).secret
        elif ending == "recipient":
            edited(workers, alter_recipient, known.state.name, expires_at=ends_at)
        else:
            edited(workers, grant, "flights", recipient=known.state.name, ends_at=ends_at)
        assert 200 in workers.statuses(token)
        waiting[ending] = token, ends_at
    while waiting:
        for ending, (token, ends_at) in list(waiting.items()):
            status = 404 if ending == "grant" else 401
            if workers.statuses(token) == [status] * WORKERS:
                assert datetime.now(UTC) >= ends_at
                del waiting[ending]
            else:
                assert (datetime.now(UTC) - ends_at).total_seconds() < ONE_SECOND
        # Without a pause the requests of the first second would keep the processors busy.
        time.sleep(PAUSE_S)


def test_a_limit_holds_for_all_workers_together(workers: Workers) -> None:
    most = 40
    known = a_recipient(workers.provider, "limited")
    edited(workers, alter_recipient, "limited", limits={"requests_per_minute": most})
    allowed: dict[int, int] = {}
    statuses: list[int] = []
    while statuses != [429] * WORKERS:
        minute = int(time.time() // 60)
        statuses = workers.statuses(known.secret)
        allowed[minute] = allowed.get(minute, 0) + statuses.count(200)
    # Never more than the limit, wherever a minute ends; what one worker holds in advance is a permit or none.
    assert max(allowed.values()) <= most + WORKERS
    assert sum(allowed.values()) >= most - WORKERS


def test_a_quota_of_files_is_exceeded_by_no_more_than_the_answers_under_way(workers: Workers) -> None:
    most = 30
    known = a_recipient(workers.provider, "rationed")
    edited(workers, alter_recipient, "rationed", limits={"urls_per_day": most})
    answered, statuses = 0, [200]
    began = time.monotonic()
    while statuses != [429] * WORKERS:
        assert time.monotonic() - began < PATIENCE_S
        statuses = workers.statuses(known.secret)
        answered += 3 * statuses.count(200)
    assert most <= answered
    headers = {"Authorization": f"Bearer {known.secret}"}
    refused = workers.connections[0].post(QUERY, json={}, headers=headers)
    assert refused.json()["errorCode"] == "REQUEST_LIMIT_EXCEEDED"
    assert "30 files in a day (UTC)" in refused.json()["message"]
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    # What signs nothing goes on.
    poll = workers.connections[0].get(f"{FLIGHTS}/version", headers=headers)
    assert poll.status_code == 200
