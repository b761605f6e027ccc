"""Clients of a worker in another process, on this host, which shares its memory."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forebay
import pytest

from .conftest import SOON, in_fork


def eventually(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {SOON} s"
        time.sleep(0.05)


class Worker:
    """A worker of a directory, in a process of its own."""

    def __init__(self, program: str, origin: Path, place: Path, **more: str) -> None:
        self._program = program
        self._log = place / "worker.log"
        settings = {
            "mounts": f"/=file://{origin}",
            "network.shared_memory": "on",
            "network.shared_memory_dir": place / "windows",
            "worker.memory.prewarm": "false",
            "worker.memory.size": "64MiB",
            "worker.rpc.bind.host": "127.0.0.1",
            "worker.rpc.port": 0,
            "worker.web.port": 0,
        } | {name.replace("__", "."): value for name, value in more.items()}
        options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        self.windows = str(place / "windows")
        with self._log.open("w") as log:
            self._process = subprocess.Popen([program, "worker", *options], stdout=subprocess.DEVNULL, stderr=log)
        eventually("the worker listens", lambda: self._listens())
        self.address = self._said().split("worker listening on ", 1)[1].split()[0]

    def _said(self) -> str:
        return self._log.read_text()

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._said()
        return "worker listening on " in self._said() and self._said().endswith("\n")

    def pinned_bytes(self) -> int:
        """Memory that it keeps unchanged because somebody looks at it."""
        command = [self._program, "stats", "--all", "--json", "--workers", self.address]
        answers: list[str] = []

        def is_told() -> bool:
            # A worker that has no processor for a moment may not answer as fast as a command expects it.
            asked = subprocess.run(command, capture_output=True, text=True)
            answers.extend([asked.stdout] if asked.returncode == 0 else [])
            return bool(answers)

        eventually("the worker tells its counters", is_told)
        counters: dict[str, Any] = json.loads(answers[0])
        return int(counters["window"]["pinned_bytes"])

    def settings(self) -> dict[str, str]:
        """Of a client that sees its memory."""
        return {
            "workers": self.address,
            "network_shared_memory": "on",
            "network_shared_memory_dir": self.windows,
            "client_memory_size": "64MiB",
        }

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(SOON)
        finally:
            self._process.kill()


@pytest.fixture
def worker(origin: Path, tmp_path: Path) -> Iterator[Worker]:
    program = os.environ.get("PYTHON_TESTS_PROGRAM")
    if not program:
        pytest.skip("the program forebay is not built: PYTHON_TESTS_PROGRAM does not name it")
    worker = Worker(program, origin, tmp_path)
    yield worker
    worker.end()


def wait_until_shown(client: forebay.Client, worker: Worker, origin: Path) -> None:
    """Until the client sees the worker's memory: it looks for that in the background, and keeps what it has read otherwise."""
    numbers = itertools.count()

    def is_shown() -> bool:
        path = f"/new{next(numbers)}"
        with (origin / path[1:]).open("wb") as file:
            file.truncate(1 << 20)
        view = client.view(path, 0, 1 << 20)
        return len(view) > 0 and worker.pinned_bytes() > 0

    eventually("the worker shows its memory", is_shown)
    eventually("the view is given back", lambda: worker.pinned_bytes() == 0)


def test_everything_is_read_from_a_worker_elsewhere(worker: Worker, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    with forebay.Client(**worker.settings()) as client:
        wait_until_shown(client, worker, origin)
        for _ in range(2):
            assert client.read("/large") == wanted
            assert client.read_ranges([(f"/tree/{number:02}", 0, 10) for number in range(20)]) == [
                (origin / f"tree/{number:02}").read_bytes()[:10] for number in range(20)
            ]
        view = client.view("/large", 0, 1 << 20)
        assert worker.pinned_bytes() > 0
        assert bytes(view) == wanted[: 1 << 20]
        del view
        eventually("the view is given back", lambda: worker.pinned_bytes() == 0)


def test_the_end_of_a_forked_child_gives_back_nothing_of_its_parents(worker: Worker, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()[: 1 << 20]
    with forebay.Client(**worker.settings()) as client:
        wait_until_shown(client, worker, origin)
        view = client.view("/large", 0, 1 << 20)
        assert in_fork(lambda: client.read("/large", 0, 1 << 20) == wanted) == "True"
        # Its objects are collected as those of any process.
        child = os.fork()
        if child == 0:
            del view, client
            os._exit(0)
        os.waitpid(child, 0)
        assert worker.pinned_bytes() > 0 and bytes(view) == wanted
        # Room is made for other files, by whoever is first.
        for _ in range(3):
            client.read("/large", 4 << 20, 4 << 20)
        assert bytes(view) == wanted


#: How a reader gets a child: not at all, as Python forks, and as a library does that is written in C, of which Python knows nothing.
FORKS = {"alone": "1", "with a forked child": "os.fork()", "with a child of C code": "ctypes.PyDLL(None).fork()"}


@pytest.mark.parametrize("is_linked", [False, True], ids=["", "through a link"])
@pytest.mark.parametrize("fork", FORKS.values(), ids=FORKS.keys())
def test_a_killed_reader_gives_its_views_back(
    worker: Worker, origin: Path, tmp_path: Path, fork: str, is_linked: bool
) -> None:
    settings, has_child = worker.settings(), fork != "1"
    if is_linked:
        (tmp_path / "link").symlink_to(tmp_path)
        settings["network_shared_memory_dir"] = str(tmp_path / "link" / Path(worker.windows).name)
    program = f"""
        import ctypes, os, time, forebay
        client = forebay.Client(**{settings!r})
        while (path := input()) != "hold":
            view = client.view(path, 0, 1 << 20)
            print("viewed", flush=True)
        child = {fork}
        if child == 0:
            # Of its own accord, it does nothing with the client.
            os.write(1, f"child {{os.getpid()}}\\n".encode())
        else:
            os.write(1, b"holds\\n")
        time.sleep(600)
    """
    reader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdin is not None and reader.stdout is not None
    child = 0
    try:
        deadline = time.monotonic() + SOON
        for number in itertools.count():
            assert time.monotonic() < deadline
            # As in `wait_until_shown`.
            with (origin / f"new{number}").open("wb") as file:
                file.truncate(1 << 20)
            reader.stdin.write(f"/new{number}\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == "viewed\n"
            if worker.pinned_bytes() > 0:
                break
        reader.stdin.write("hold\n")
        reader.stdin.flush()
        lines = [reader.stdout.readline() for _ in range(1 + has_child)]
        child = next((int(line.split()[1]) for line in lines if line.startswith("child")), 0)
        assert "holds\n" in lines and worker.pinned_bytes() > 0
        os.kill(reader.pid, signal.SIGKILL)
        reader.wait()
        if has_child:
            os.kill(child, 0)
        eventually("the views come back", lambda: worker.pinned_bytes() == 0)
    finally:
        reader.kill()
        if child:
            os.kill(child, signal.SIGKILL)
        reader.wait()
        reader.stdin.close()
        reader.stdout.close()
