"""A real S3 server on the loopback interface, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pytest

BUCKET = "shelf"


@contextmanager
def s3_bucket() -> Iterator[str]:
    """The address of an empty bucket; credentials and the server's address are in the environment meanwhile."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(f"http://{host}:{port}").items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()  # servers share what they hold
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield f"s3://{BUCKET}"
        s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def environment(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
