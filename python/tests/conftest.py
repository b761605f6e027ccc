"""A directory as origin, clients of it, and processes."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forebay
import pytest

#: How long anything may take here that is not broken.
SOON = 60.0
#: So that a machine with many tests on it has the memory.
SMALL: dict[str, Any] = {"worker_memory_size": "64MiB", "worker_memory_prewarm": False}


@contextlib.contextmanager
def only_these_settings(place: Path) -> Iterator[None]:
    """No settings of this machine's count, and run state is nobody else's."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in [name for name in os.environ if name.startswith("FOREBAY_") and name != "FOREBAY_UCX_LIBRARY"]:
            monkeypatch.delenv(name)
        empty = place / "empty.toml"
        empty.write_text("")
        monkeypatch.setenv("FOREBAY_CONFIG", str(empty))
        monkeypatch.setenv("FOREBAY_RUN_DIR", str(place / "run"))
        yield


@pytest.fixture(autouse=True)
def plain_configuration(tmp_path: Path) -> Iterator[None]:
    """Each test has a configuration of its own."""
    with only_these_settings(tmp_path):
        yield


def content(seed: int, size: int) -> bytes:
    """Bytes that no two files share."""
    return random.Random(seed).randbytes(size)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A directory with a small file, one of several blocks, and a tree."""
    root = tmp_path / "origin"
    (root / "tree" / "deep").mkdir(parents=True)
    (root / "small").write_bytes(b"what a cache must never get wrong")
    (root / "large").write_bytes(content(1, (9 << 20) + 123))
    (root / "empty").write_bytes(b"")
    for number in range(20):
        (root / "tree" / f"{number:02}").write_bytes(content(number, 1000 + number))
    (root / "tree" / "deep" / "end").write_bytes(b"end")
    return root


@pytest.fixture
def client(origin: Path) -> Iterator[forebay.Client]:
    """A client with a worker of the directory in this process."""
    with forebay.Client(up=origin, **SMALL) as client:
        yield client


class HungWorker:
    """A worker that takes connections and never says a word."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.is_asked = threading.Event()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self.is_asked.set()

    def close(self) -> None:
        # `close` alone does not end an `accept` that waits.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()


@pytest.fixture
def hung_worker() -> Iterator[HungWorker]:
    """A worker that never answers."""
    worker = HungWorker()
    yield worker
    worker.close()


def in_fork(check: Callable[[], object]) -> str:
    """What ``check`` gives in a forked process, as text; its exception, if it raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            said = str(check())
        except BaseException as error:  # Nothing may get out: the tests would go on here.
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0) == (child, 0)
    return said
