"""A bucket of a real S3-compatible server on this machine, for tests of what is kept in one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.training.faulty_store import StoreLine


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket; its server and keys are in the environment, as a person would have them."""
    try:
        import s3fs
        from moto.server import ThreadedMotoServer
    except ImportError:
        pytest.skip('NOT TESTED: checkpoints in S3. To test them: pip install "moto[server]" s3fs')
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    # a client that was made once is made again only if it is forgotten
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"studies-{uuid.uuid4().hex}"
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture
def store_line(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreLine]:
    """A line to the server of the bucket, over which clients reach it from now on."""
    import s3fs

    line = StoreLine(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    monkeypatch.setenv("AWS_ENDPOINT_URL", line.url)
    s3fs.S3FileSystem.clear_instance_cache()
    yield line
    line.close()
