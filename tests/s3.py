"""A real S3 server on loopback, which child processes reach, too."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import fsspec
import pytest

BUCKET = "clips"


@contextmanager
def s3_server() -> Iterator[Any]:
    """Starts the server, and names it in the environment; yields its file system with the empty
    bucket `BUCKET`.
    """
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    reset = Request(f"http://{host}:{port}/moto-api/reset", method="POST")
    urlopen(reset, timeout=600).close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "geheim")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        system.mkdir(BUCKET)
        yield system
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    server.stop()
