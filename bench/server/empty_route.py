"""The least that the framework can do: a route that answers nothing, on the server's own uvicorn settings.

Run by the benchmark as `python -m bench.server.empty_route WORKERS`.
"""

import socket
import sys

import uvicorn
from fastapi import FastAPI, Response

app = FastAPI(openapi_url=None)


@app.get("/{path:path}")
async def nothing(path: str) -> Response:
    """Nothing, as fast as it goes."""
    return Response()


def main() -> None:
    """Answer until killed."""
    workers = int(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        print(f"ready http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
        config = uvicorn.Config(
            "bench.server.empty_route:app", workers=workers, ws="none", access_log=False, log_level="warning",
            server_header=False,
        )  # fmt: skip
        if workers == 1:
            uvicorn.Server(config).run(sockets=[listening])
            return
        from uvicorn.supervisors import Multiprocess

        Multiprocess(config, [listening]).run()


if __name__ == "__main__":
    main()
