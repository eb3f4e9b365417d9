"""Guards that S3's protocol serves as a shared place, with moto's server.

The test with kills is marked `full`: each process reads descriptions of Amazon's services first.

Run: python -m pytest tests/model_code/collection/follow/test_follow_s3.py
"""

from __future__ import annotations

import uuid

import pytest

from tests.model_code.collection.follow.kills import kill_all
from tests.model_code.collection.follow.places import change, follow, publish_to, searches


@pytest.fixture
def bucket(monkeypatch) -> str:
    import s3fs
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    # moto's buckets outlive its server.
    name = f"notes-{uuid.uuid4().hex}"
    s3fs.S3FileSystem(endpoint_url=f"http://{host}:{port}").mkdir(name)
    yield f"s3://{name}/search"
    running.stop()


def test_follower_equals_writer_over_s3(own, bucket, tmp_path):
    publish_to(own, bucket)
    follower = follow(tmp_path / "copy", bucket)
    follower.update()
    change(own, {"added": "word1 word2"}, deletes=["d06"])
    change(own, {"added too": "word1 word3"})

    publish_to(own, bucket)
    follower.update()

    assert searches(follower.project) == searches(own)


@pytest.mark.full
def test_killed_followers_equal_the_killed_writer_over_s3(own, bucket, tmp_path):
    kill_all(own, bucket, tmp_path, kills=3, changes=12)
