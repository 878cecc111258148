"""The stand-in as a process: it listens until it is told to stop, and says when it is ready."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from lakeshare_pipelines.backup.batch_server.app import batch_app
from lakeshare_pipelines.backup.batch_server.authentication import OwnKeys
from lakeshare_pipelines.backup.batch_server.run import Behaviour
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.async_s3 import Identity
from lakeshare_pipelines.errors import BackupError

STOP_S = 10


def serve(
    folder: Path,
    address: StoreAddress,
    behaviour: Behaviour,
    host: str,
    port: int,
    ready: Callable[[str], None],
    keys: OwnKeys | None,
) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is told the URL once requests are taken. Port 0 takes a free one.

    Raises:
        BackupError: the port cannot be had.
    """
    import uvicorn

    listening = _listening(host, port)
    url = f"http://{host}:{listening.getsockname()[1]}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready(url)

    config = uvicorn.Config(
        batch_app(folder, address, behaviour, keys),
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=STOP_S,
    )
    with listening:
        Server(config).run([listening])


def own_keys(address: StoreAddress) -> OwnKeys:
    """The keys that requests are to be signed with.

    Raises:
        BackupError: there are none.
    """
    keys = OwnKeys(Identity(address))
    asyncio.run(keys.now())
    return keys


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise BackupError(
            f"{host}:{port}", f"nothing can listen there: {error.strerror}", "Take another --port or --host."
        ) from error
