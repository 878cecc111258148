"""The sharing server: assembles the application and runs it."""

import gc
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from lakeshare_server.access.rate_limit import TrustedProxies
from lakeshare_server.catalog import open_catalog
from lakeshare_server.errors import Unavailable
from lakeshare_server.metrics import WORKERS_FOLDER, RequestMetrics, forget_worker
from lakeshare_server.outbound import Services
from lakeshare_server.pages import activation, console, portal
from lakeshare_server.pages.portal import LocationSigners, Previews
from lakeshare_server.pages.rendering import PageHeaders
from lakeshare_server.routes import evidence, feed, files, health, iceberg, monitoring, oauth, tables
from lakeshare_server.routes.admin import PREFIX as ADMIN_PREFIX
from lakeshare_server.routes.admin import admin_api, well_known
from lakeshare_server.routes.context import AppState
from lakeshare_server.routes.errors import (
    AuditMiddleware,
    ClientAddressMiddleware,
    RateLimitMiddleware,
    add_error_responses,
)
from lakeshare_server.routes.responses import LIMITS, ConnectionLimits, GuardedProtocol, RequestBodyMiddleware
from lakeshare_server.settings import CONSOLE_PATH, ServerSettings, read_log_format
from lakeshare_server.storage import Stores, load_key
from lakeshare_server.telemetry.logs import configure_logs

SHUTDOWN_S = 10
START_S = 60
WORKER_ANSWER_S = 30
# How long the supervisor waits for one worker, without looking at signals and the others.
PING_S = 0.5
# A thread that renders lines yields to the event loop sooner than after the default of 5 ms.
SWITCH_S = 0.0005
# The Spark connector (1.4.1) refreshes URLs that end within 15 minutes, and treats a life up to that as an hour.
SPARK_REFRESHES_AHEAD_S = 900

_log = logging.getLogger(__name__)


def create_app(settings: ServerSettings) -> FastAPI:
    """The application over the catalog of the settings; raises `BadRequest` for a short key or an invalid URL."""
    metrics = RequestMetrics(names=settings.telemetry_names)
    stores = Stores(settings, Services(settings.outside_answer_s, metrics.note_outage))
    app_state = AppState(settings, stores, metrics)
    app_state.write_check = health.WriteCheck(app_state.catalog, settings)
    app_state.state_metrics = monitoring.StateMetrics(app_state)
    console_work = console.open_console_work(app_state)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, ConnectionLimits]]:
        sys.setswitchinterval(SWITCH_S)
        app_state.async_worker.start()
        app_state.usage_writer.start()
        app_state.webhook_dispatcher.start()
        proxies = TrustedProxies(settings.trusted_proxies)
        yield {LIMITS: ConnectionLimits(settings.slow_client_s, settings.connections_per_address, proxies)}
        console_work.jobs.close()
        app_state.async_worker.stop()
        app_state.usage_writer.stop()
        app_state.webhook_dispatcher.stop()
        app_state.usage.stop()
        app_state.verifications.stop()
        app_state.pools.close()
        app_state.audit.close()
        app_state.catalog.close()

    telemetry = health.telemetry_settings()
    app = FastAPI(lifespan=lifespan, openapi_url=None, redirect_slashes=False, telemetry=telemetry)
    app.state.app_state = app_state
    app.state.previews = Previews(LocationSigners(settings, app_state.local_signer, stores), stores)
    app.add_middleware(PageHeaders)
    # The last middleware is the outermost: all others get the client address from it.
    names = settings.telemetry_names
    app.add_middleware(AuditMiddleware, audit=app_state.audit, metrics=metrics, names=names)
    app.add_middleware(RateLimitMiddleware, limits=app_state.limits)
    app.add_middleware(ClientAddressMiddleware, proxies=TrustedProxies(settings.trusted_proxies))
    app.add_middleware(RequestBodyMiddleware)
    add_error_responses(app)
    _add_routes(app, settings.endpoint.rstrip("/"))
    app.mount(ADMIN_PREFIX, admin_api(app_state, app))
    app.mount(CONSOLE_PATH, console.console_app(app_state, app, console_work))
    return app


def _add_routes(app: FastAPI, prefix: str) -> None:
    """Adds the routes for recipients and probes; `prefix` is that of the protocol."""
    app.include_router(health.router)
    app.include_router(monitoring.router)
    app.include_router(well_known)
    app.include_router(oauth.iceberg_router)
    for router in (
        oauth.router,
        tables.listings_router,
        feed.router,
        tables.router,
        evidence.router,
        files.router,
    ):
        app.include_router(router, prefix=prefix)
    app.include_router(activation.router)
    app.include_router(portal.router)
    app.include_router(console.entrance)
    # First, because no prefix of ours begins like the paths of the Iceberg catalog.
    app.router.routes[:0] = [*tables.make_priority_routes(prefix), *iceberg.routes()]
    app.router.routes.append(iceberg.other_calls())


def app_from_environment() -> FastAPI:
    """The application with the environment's settings, for `uvicorn --factory` with several workers."""
    configure_logs(read_log_format)
    app = create_app(ServerSettings())
    gc.freeze()
    return app


class Server(uvicorn.Server):
    """A server that calls `ready` after its startup."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def make_server(
    settings: ServerSettings, on_ready: Callable[[str], None] | None = None
) -> tuple[Server, socket.socket]:
    """A server and its socket; `on_ready` is called with the protocol's root URL. Raises as `create_app`."""
    settings, listening = _bind(settings)
    try:
        app = create_app(settings)
    except BaseException:
        listening.close()
        raise
    return Server(_config(app), lambda: on_ready(settings.base_url()) if on_ready else None), listening


def serve(settings: ServerSettings, on_ready: Callable[[str], None] | None = None, workers: int = 1) -> None:
    """Serve until a signal ends it; several workers are processes that share one socket and are restarted."""
    # Files that the server and its workers write are for their own user.
    os.umask(0o077)
    folder = settings.state_dir
    mode = folder.stat().st_mode & 0o777 if folder.exists() else 0o700
    if mode & 0o077:
        _log.warning("other users of this host can read %s (mode %o): run chmod 700 %s", folder, mode, folder)
    if workers > 1:
        _serve_with_workers(settings, on_ready, workers)
        return
    server, listening = make_server(settings, on_ready)
    # Modules and routes stay to the end: each full collection would stop the server while it went through them.
    gc.freeze()
    with listening:
        server.run(sockets=[listening])


def _serve_with_workers(
    settings: ServerSettings, on_ready: Callable[[str], None] | None, workers: int
) -> None:
    settings, listening = _bind(settings)
    # Fails once, before the workers would.
    open_catalog(settings.catalog_url).close()
    load_key(settings)
    os.environ.update(LAKESHARE_HOST=settings.host, LAKESHARE_PORT=str(settings.port))
    config = _config(
        "lakeshare_server.app:app_from_environment",
        workers=workers,
        factory=True,
        # For a restart by SIGHUP; _Supervisor has it for workers that run.
        timeout_worker_healthcheck=WORKER_ANSWER_S,
    )
    with listening, tempfile.TemporaryDirectory(prefix="lakeshare-metrics-") as folder:
        os.environ.setdefault(WORKERS_FOLDER, folder)
        if on_ready is not None:
            threading.Thread(target=_announce, args=(settings, on_ready), daemon=True).start()
        _Supervisor(config, [listening]).run()


class _Supervisor(Multiprocess):
    """uvicorn's supervisor, which no worker keeps from the other workers and from signals.

    uvicorn's own waits for the reply of one worker to a ping, and without an end for the last worker to stop.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._replied: dict[Process, float] = {}

    def keep_subprocess_alive(self) -> None:
        for number, worker in enumerate(self.processes):
            now = time.monotonic()
            # With this copy of the worker's end open, a ping would not notice that the worker has ended.
            worker.child_conn.close()
            if worker.is_alive(PING_S):
                self._replied[worker] = now
            # A worker imports the application for some seconds before it replies, on a busy host for more than 5.
            elif worker.process.is_alive() and now - self._replied.setdefault(worker, now) > WORKER_ANSWER_S:
                worker.kill()
                worker.join()
            if worker.exitcode == STARTUP_FAILURE:
                _log.error("worker %s failed to start: the server ends", worker.pid)
                self.should_exit.set()
                return
            if worker.exitcode is not None:
                forget_worker(worker.pid)
                self.processes[number] = Process(self.config, self.sockets)
                self.processes[number].start()
                self._replied.pop(worker, None)

    def join_all(self) -> None:
        deadline = time.monotonic() + SHUTDOWN_S + PING_S
        for worker in self.processes:
            worker.process.join(max(0, deadline - time.monotonic()))
            if worker.exitcode is None:
                _log.error("worker %s does not stop and is killed", worker.pid)
                worker.process.kill()
                worker.process.join()


def _announce(settings: ServerSettings, on_ready: Callable[[str], None]) -> None:
    """Calls `on_ready` once a worker responds."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    while True:
        try:
            httpx.get(f"http://{host}:{settings.port}/healthz", timeout=START_S).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            on_ready(settings.base_url())
            return


def _config(app: FastAPI | str, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ws="none",
        access_log=False,
        log_level="warning",
        # Its loggers write as all others do.
        log_config=None,
        server_header=False,
        http=GuardedProtocol,
        # The application decides which proxies may name the client (LAKESHARE_TRUSTED_PROXIES).
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
        **options,
    )


def _bind(settings: ServerSettings) -> tuple[ServerSettings, socket.socket]:
    """The listening socket, and the settings with its port."""
    if settings.url_life_s <= SPARK_REFRESHES_AHEAD_S:
        _log.warning(
            "LAKESHARE_URL_LIFE_S is %s: Spark jobs that read for longer fail, because the connector takes a life of "
            "%s seconds or less for an hour and does not refresh the URLs in time. Set it to more than %s.",
            settings.url_life_s,
            SPARK_REFRESHES_AHEAD_S,
            SPARK_REFRESHES_AHEAD_S,
        )
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio sends small writes at once only for sockets of this protocol; connections inherit it.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise Unavailable(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            "Set LAKESHARE_HOST and LAKESHARE_PORT to an address of this host that is free; port 0 takes any.",
        ) from error
    return settings.model_copy(update={"port": listening.getsockname()[1]}), listening
