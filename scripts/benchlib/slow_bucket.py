"""An S3 server of this machine whose every answer is late: `python -m benchlib.slow_bucket FOLDER SECONDS`.

Everything in the folder is put into the bucket ``shelf``; then the address is printed, and it serves until it is ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

BUCKET = "shelf"
WsgiApp = Callable[[dict[str, Any], Any], Iterable[bytes]]


def environment(endpoint: str) -> dict[str, str]:
    """What clients need to find it; any key is let in."""
    return {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip


def late(app: WsgiApp, seconds: float) -> WsgiApp:
    def answer(request: dict[str, Any], begin: Any) -> Iterable[bytes]:
        time.sleep(seconds)
        return app(request, begin)

    return answer


def serve(folder: Path, seconds: float) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= environment(f"http://{host}:{port}")
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.upload_file(str(path), BUCKET, str(path.relative_to(folder)))
    server._server.app = late(server._server.app, seconds)
    print(os.environ["AWS_ENDPOINT_URL"], flush=True)
    signal.pause()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), float(sys.argv[2]))
