"""An origin that is far away: what is asked for at once takes as long as what is asked for alone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import forebay
import pytest

from .conftest import SMALL

#: Much more than the work for a listing takes on a busy machine, and all of them more than it may stand still.
LATENCY = "400ms"
DIRECTORIES = 24


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory behind a bucket of a server that takes its time to answer."""
    program = os.environ.get("PYTHON_TESTS_PROGRAM")
    server = Path(program).with_name("forebay-testkit-s3") if program else None
    if not server or not server.exists():
        pytest.skip("forebay-testkit-s3 is not built beside what PYTHON_TESTS_PROGRAM names")
    place = tmp_path / "s3" / "bucket"
    place.mkdir(parents=True)
    command = [str(server), "--dir", str(place.parent), "--latency", LATENCY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().rpartition("listening on ")[2].split()[0]
        keys = {"AWS_ACCESS_KEY_ID": "forebay-test", "AWS_SECRET_ACCESS_KEY": "forebay-test-secret"}
        for name, value in (keys | {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1"}).items():
            monkeypatch.setenv(name, value)
        yield place
        process.terminate()


def test_a_walk_asks_for_directories_before_it_gets_there(bucket: Path) -> None:
    for tree in ("alone", "walked"):
        for number in range(DIRECTORIES):
            directory = bucket / tree / f"{number:02}"
            directory.mkdir(parents=True)
            (directory / "file").write_bytes(b"x")
    with forebay.Client(up="s3://bucket", **SMALL) as client:
        began = time.monotonic()
        for entry in client.ls("/alone"):
            assert [below.name for below in client.ls(entry.path)] == ["file"]
        alone = time.monotonic() - began
        began = time.monotonic()
        walked = [entry.path for entry in client.find("/walked")]
        together = time.monotonic() - began
    assert walked == [f"/walked/{number:02}/file" for number in range(DIRECTORIES)]
    assert together < alone / 2, f"{together:.2f} s, where one after the other takes {alone:.2f} s"
