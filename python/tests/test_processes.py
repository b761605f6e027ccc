"""Forks, other processes, signals and interpreters."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forebay
import numpy
import pytest
from forebay import _client, _logging, _native
from forebay._prefetch import Prefetch
from forebay._settings import Settings

from .conftest import SMALL, SOON, HungWorker, content, in_fork


def test_a_forked_child_reads_through_connections_of_its_own(client: forebay.Client, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    with client.open("/large") as file:
        assert file.pread(10, 0) == wanted[:10]
        assert in_fork(lambda: client.read("/large") == wanted) == "True"
        assert in_fork(lambda: file.pread(10, 5 << 20) == wanted[5 << 20 : (5 << 20) + 10]) == "True"
        # A child of a child, which never used the client in between.
        assert in_fork(lambda: in_fork(lambda: file.pread(10, 0) == wanted[:10])) == "True"
        # The parent's are as they were.
        assert file.pread(10, 4 << 20) == wanted[4 << 20 : (4 << 20) + 10]


def test_a_view_raises_in_a_forked_child_and_stays_the_parents(client: forebay.Client, origin: Path) -> None:
    view = client.view("/small", 0, 4)
    assert in_fork(lambda: bytes(view)).startswith("BufferError: this view was made by the process")
    assert in_fork(lambda: len(view)).startswith("BufferError")
    assert in_fork(lambda: view) == "<forebay.View of the parent process>"
    assert bytes(view) == b"what"


def test_an_array_made_of_a_view_keeps_its_bytes_in_a_forked_child(tmp_path: Path) -> None:
    size, count = 1 << 20, 40
    for number in range(count):
        (tmp_path / str(number)).write_bytes(content(number, size))
    with forebay.Client(up=tmp_path, worker_memory_size="32MiB", worker_memory_prewarm=False) as client:
        client.read("/0")
        view = client.view("/0", 0, size)
        assert not view.is_copy
        array = numpy.frombuffer(memoryview(view), numpy.uint8)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            # By now the parent has other bytes where these were.
            os.read(reader, 1)
            os._exit(0 if array.tobytes() == content(0, size) else 1)
        os.close(reader)
        del view, array
        for _ in range(2):
            for number in range(1, count):
                assert client.read(f"/{number}") == content(number, size)
        os.write(writer, b".")
        os.close(writer)
        assert os.waitpid(child, 0) == (child, 0)


def test_a_fork_beside_threads_that_read_costs_neither_an_error(client: forebay.Client, origin: Path) -> None:
    wanted, is_over = (origin / "large").read_bytes(), threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not is_over.is_set():
            if client.read("/large", 1 << 20, 1000) != wanted[1 << 20 : (1 << 20) + 1000]:
                wrong.append("parent")

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert in_fork(lambda: client.read("/large", 0, 1000) == wanted[:1000]) == "True"
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_fork_beside_clients_that_come_and_go_has_locks_of_its_own(client: forebay.Client, origin: Path) -> None:
    wanted, is_over = (origin / "large").read_bytes(), threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            with forebay.Client(up=origin, **SMALL) as other:
                other.read("/small")

    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert in_fork(lambda: client.read("/large", 0, 1000) == wanted[:1000]) == "True"
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def first_bytes(client: forebay.Client, path: str) -> bytes:
    """Run in other processes."""
    return client.read(path, 0, 16)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes_read_with_a_pickled_client(client: forebay.Client, origin: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    paths = [f"/tree/{number:02}" for number in range(20)]
    with context.Pool(2) as pool:
        found = pool.starmap(first_bytes, [(client, path) for path in paths])
        pool.close()
        pool.join()
    assert found == [(origin / path[1:]).read_bytes()[:16] for path in paths]


def test_a_process_that_is_killed_while_it_reads_costs_others_nothing(client: forebay.Client, origin: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        while True:
            client.read("/large")
            os.write(writer, b".")
    os.close(writer)
    assert os.read(reader, 1) == b"."
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    assert client.read("/large") == (origin / "large").read_bytes()


def test_ctrl_c_ends_a_wait_and_the_client_goes_on(hung_worker: HungWorker) -> None:
    with forebay.Client(workers=hung_worker.address, network_shared_memory="off") as client:

        def interrupt() -> None:
            hung_worker.is_asked.wait(SOON)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            client.stat("/file")
        assert time.monotonic() - began < SOON


class Enough(Exception):
    """What a handler raises when it has what it wanted."""


def test_a_signal_handler_may_read_while_its_thread_waits(
    hung_worker: HungWorker, client: forebay.Client, origin: Path
) -> None:
    found: list[bytes] = []

    def handle(*_: object) -> None:
        # Nothing of it is cached: this waits as well.
        found.append(client.read("/large"))
        raise Enough

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with forebay.Client(workers=hung_worker.address, network_shared_memory="off") as waiting:

            def interrupt() -> None:
                hung_worker.is_asked.wait(SOON)
                os.kill(os.getpid(), signal.SIGUSR1)

            threading.Thread(target=interrupt).start()
            with pytest.raises(Enough):
                waiting.stat("/file")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == [(origin / "large").read_bytes()]


def test_a_signal_handler_reads_though_the_interrupted_read_holds_all_that_may_be_on_its_way(origin: Path) -> None:
    size, count = 192 << 20, 40
    with (origin / "huge").open("wb") as file:
        file.truncate(size)
    for number in range(count):
        (origin / f"other{number}").write_bytes(content(number, 100_000))
    found: list[bool] = []

    def read(number: int) -> None:
        found.append(client.read(f"/other{number}") == content(number, 100_000))

    def handle(*_: object) -> None:
        if (number := len(found)) < count - 1:
            # Of its own thread, and of one that it waits for.
            read(number)
            thread = threading.Thread(target=read, args=[number + 1])
            thread.start()
            thread.join()
            signal.setitimer(signal.ITIMER_REAL, 0.05)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with forebay.Client(up=origin, **SMALL) as client:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            buffer = bytearray(size)
            assert client.read_into([("/huge", 0, buffer)]) == [size]
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert not any(buffer)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert found and all(found)


class Started:
    """A session that tells whether it was closed."""

    def __init__(self, session: _native.Session) -> None:
        self._session = session
        self.is_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def close(self) -> None:
        self.is_closed = True
        self._session.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """All sessions that are started. While the first one is, this thread gets SIGUSR1."""
    sessions: list[Started] = []
    start = _native.Session.start

    def interrupted(*settings: Any) -> Started:
        session = Started(start(*settings))
        sessions.append(session)
        if len(sessions) == 1:
            signal.raise_signal(signal.SIGUSR1)
        return session

    monkeypatch.setattr(_client, "_native", SimpleNamespace(Session=SimpleNamespace(start=interrupted)))
    return sessions


@contextlib.contextmanager
def handling(handle: Callable[..., object]) -> Iterator[None]:
    """SIGUSR1, by ``handle``, and no wait for ever."""

    def be_late(*_: object) -> None:
        raise AssertionError("the handler waits for its own thread")

    before = signal.signal(signal.SIGUSR1, handle), signal.signal(signal.SIGALRM, be_late)
    signal.alarm(int(SOON))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGALRM, before[1])


def test_a_signal_handler_may_use_the_client_that_its_thread_connects(origin: Path, started: list[Started]) -> None:
    client = forebay.Client._of(Settings.of(None, None, origin, None, SMALL))
    found: list[bytes] = []
    with handling(lambda *_: found.append(client.read("/small"))):
        found.append(client.read("/small"))
    assert found == 2 * [(origin / "small").read_bytes()]
    # Of two connections the handler's stays, which it may have files of.
    assert [session.is_closed for session in started] == [True, False]
    client.close()
    assert started[1].is_closed


def test_a_client_that_a_handler_closes_while_it_connects_is_closed(origin: Path, started: list[Started]) -> None:
    client = forebay.Client._of(Settings.of(None, None, origin, None, SMALL))
    with handling(lambda *_: client.close()), pytest.raises(ValueError, match="the client is closed"):
        client.read("/small")
    assert [session.is_closed for session in started] == [True]


def test_a_signal_handler_may_look_for_the_client_that_its_thread_looks_for(
    origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(weakref.WeakValueDictionary[Settings, forebay.Client]):
        was_asked = False

        def get(self, *arguments: Any, **named: Any) -> Any:
            if not self.was_asked:
                self.was_asked = True
                signal.raise_signal(signal.SIGUSR1)
            return super().get(*arguments, **named)

    monkeypatch.setattr(_client, "_came", Interrupted())
    settings, found = Settings.of(None, None, origin, None, SMALL), list[forebay.Client]()
    with handling(lambda *_: found.append(_client._restored(*settings))):
        found.append(_client._restored(*settings))
    assert len(found) == 2 and found[0] is found[1]


def test_a_signal_handler_may_go_on_with_the_plan_that_its_thread_takes_from() -> None:
    fetched: list[int] = []

    def fetch(ranges: list[tuple[str, int, int]], *_: object) -> None:
        fetched.extend(int(path) for path, _, _ in ranges)

    def plan() -> Iterator[tuple[str, int, int]]:
        for number in range(20):
            if number == 10:
                signal.raise_signal(signal.SIGUSR1)
            yield str(number), 0, 10

    session: Any = SimpleNamespace(fetch=fetch)
    prefetch = Prefetch(lambda: session, plan(), 50, "here")
    with handling(lambda *_: prefetch.advance(10)):
        prefetch.advance(5)
    # What the handler told of was read before it was announced.
    assert fetched == [*range(10), *range(15, 20)]


def test_a_signal_handler_may_wait_for_and_close_the_plan_that_its_thread_is_busy_with(hung_worker: HungWorker) -> None:
    class Interrupted(set[Any]):
        def add(self, begun: Any) -> None:
            super().add(begun)
            signal.raise_signal(signal.SIGUSR1)

    waited: list[bool] = []

    def handle(*_: object) -> None:
        waited.append(prefetch.wait(0.05))
        prefetch.close()
        waited.append(prefetch.wait())

    with forebay.Client(workers=hung_worker.address, network_shared_memory="off") as client:
        prefetch = client.prefetch([("/file", 0, 10)] * 2, ahead=10)
        prefetch._under_way = Interrupted(prefetch._under_way)
        with handling(handle):
            prefetch.advance()
        assert waited == [False, True] and prefetch.wait(0) and not prefetch._under_way


def test_a_signal_handler_may_connect_while_the_thread_of_messages_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    forwarding, made = _logging._Forwarding(), list[threading.Thread]()

    class Interrupted(threading.Thread):
        def start(self) -> None:
            made.append(self)
            signal.raise_signal(signal.SIGUSR1)
            super().start()

    monkeypatch.setattr(_logging, "threading", SimpleNamespace(Thread=Interrupted))
    with handling(lambda *_: forwarding.begin()):
        forwarding.begin()
    assert [thread.is_alive() for thread in made] == [True]
    forwarding.end()
    assert not made[0].is_alive()


def test_a_call_whose_handler_forks_ends_in_the_child_and_goes_on_in_the_parent(hung_worker: HungWorker) -> None:
    child = -1

    def handle(*_: object) -> None:
        nonlocal child
        child = os.fork()
        if child:
            raise Enough

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with forebay.Client(workers=hung_worker.address, network_shared_memory="off") as client:

            def interrupt() -> None:
                hung_worker.is_asked.wait(SOON)
                os.kill(os.getpid(), signal.SIGUSR1)

            threading.Thread(target=interrupt).start()
            try:
                client.stat("/file")
            except Enough:
                pass
            except BaseException as error:
                if child == 0:
                    os._exit(0 if isinstance(error, OSError) and error.errno == errno.ESTALE else 1)
                raise
            if child == 0:
                os._exit(2)
            assert os.waitpid(child, 0) == (child, 0)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_threads_run_while_one_waits(hung_worker: HungWorker) -> None:
    with forebay.Client(
        # In which it has to connect.
        workers=hung_worker.address, client_request_timeout="5s", network_shared_memory="off"
    ) as client:
        waited: list[BaseException] = []

        def wait() -> None:
            try:
                client.stat("/file")
            except OSError as error:
                waited.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert hung_worker.is_asked.wait(SOON), "this thread has the interpreter"
        thread.join(SOON)
        [error] = waited
        assert isinstance(error, OSError) and error.errno


def test_a_client_that_nobody_closed_ends_with_its_interpreter(origin: Path) -> None:
    program = f"""
        import logging
        import forebay
        # What this machine lacks, it would be warned of.
        logging.getLogger("forebay").setLevel(logging.CRITICAL)
        client = forebay.Client(up={str(origin)!r}, **{SMALL!r})
        print(client.read("/small").decode())
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=SOON
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "what a cache must never get wrong\n"


@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_however_a_process_ends_it_leaves_no_files(origin: Path, tmp_path: Path, end: str) -> None:
    program = f"""
        import os, signal
        import forebay
        client = forebay.Client(up={str(origin)!r}, **{SMALL!r})
        child = os.fork()
        if child != 0:
            os.waitpid(child, 0)
        # The child has a cache of its own.
        os.write(1, client.read("/small"))
        {end}
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        timeout=SOON,
    )
    assert ended.stdout == 2 * (origin / "small").read_bytes(), ended.stderr
    assert list(temporary.iterdir()) == []


def test_a_subinterpreter_is_refused_clearly() -> None:
    program = """
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        interpreter = interpreters.create()
        try:
            said = interpreters.run_string(interpreter, "import forebay")
            print(said and said.formatted)
        except Exception as error:
            print(error)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=SOON
    )
    assert "main interpreter only" in ended.stdout + ended.stderr
