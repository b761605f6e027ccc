"""The client for asyncio.

>>> import asyncio
>>> from forebay.aio import AsyncClient
>>> async def first_bytes() -> bytes:
...     async with AsyncClient(up="file:///srv/datasets") as client:
...         return await client.read("/labels.txt", 0, 100)
>>> asyncio.run(first_bytes())

What is in memory of this process is answered at once, without another thread; other tasks have a turn after five milliseconds of that.
What has to wait is waited for by the runtime of the native module. A task that is cancelled takes its read along: when ``CancelledError``
is raised, nothing writes to the read's buffers any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from forebay import _logging, _native, _processes
from forebay._client import Client
from forebay._devices import device_number
from forebay._entry import Entry, checked_depth
from forebay._prefetch import Prefetch
from forebay._ranges import LONG, Ranges
from forebay._settings import Setting, Settings

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from forebay._client import AnyPath, Target

__all__ = ["AsyncClient", "AsyncFile", "AsyncPrefetch", "AsyncUpload"]

_Answer = TypeVar("_Answer")
_Done = Callable[[Any, BaseException | None], object]
#: How long tasks are answered at once before others have a turn, in seconds.
_TURN = 0.005


class _Turn(threading.local):
    """Since when tasks of this thread's loop have been answered at once, without the loop in between."""

    since: float | None = None

    def end(self) -> None:
        """The loop goes on."""
        self.since = None


_turn = _Turn()


class AsyncClient:
    """What :class:`forebay.Client` is, for one event loop. It connects when it is first used.

    The arguments are those of :class:`forebay.Client`, and so are the errors and what is pickled.
    """

    def __init__(
        self,
        *,
        etcd: str | Iterable[str] | None = None,
        workers: str | Iterable[str] | None = None,
        up: str | os.PathLike[str] | None = None,
        config: str | os.PathLike[str] | None = None,
        **settings: Setting,
    ) -> None:
        self._begin(Settings.of(etcd, workers, up, config, settings))

    @classmethod
    def beside(cls, client: Client) -> AsyncClient:
        """``client``, for asyncio: both have one connection, and with ``up`` one cache. If either is closed, both are."""
        twin = cls.__new__(cls)
        twin._begin(client._settings, client)
        return twin

    def _begin(self, settings: Settings, twin: Client | None = None) -> None:
        self._settings = settings
        self._twin = twin
        self._session: _native.Session | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False
        _processes.register(self)

    async def stat(self, path: AnyPath, *, revalidate: bool = False) -> Entry:
        """As :meth:`forebay.Client.stat`."""
        session = await self._live()
        return Entry._make(await _answer(lambda done: session.stat(path, revalidate, done)))

    async def ls(self, path: AnyPath = "/") -> list[Entry]:
        """As :meth:`forebay.Client.ls`."""
        session = await self._live()
        return [Entry._make(fields) for fields in await _answer(lambda done: session.listing(path, done))]

    async def find(
        self,
        path: AnyPath = "/",
        *,
        dirs: bool = False,
        maxdepth: int | None = None,
        prefix: AnyPath | None = None,
    ) -> AsyncIterator[Entry]:
        """As :meth:`forebay.Client.find`."""
        walk = (await self._live()).walk(path, checked_depth(maxdepth), prefix)
        while (page := await _answer(walk.next_page)) is not None:
            for entry in map(Entry._make, page):
                if dirs or entry.is_file:
                    yield entry

    async def open(self, path: AnyPath) -> AsyncFile:
        """As :meth:`forebay.Client.open`."""
        session = await self._live()
        native, fields = await _answer(lambda done: session.open(path, done))
        described = native.description()
        if described is None:
            raise RuntimeError("the process was forked while a file was opened; open it again")
        return AsyncFile(self, Entry._make(fields), described, session, native)

    async def read(self, path: AnyPath, offset: int = 0, n: int | None = None) -> bytes:
        """As :meth:`forebay.Client.read`."""
        if offset < 0:
            raise ValueError(f"{offset} is no offset; give one from 0 on")
        if n is not None and n <= LONG:
            return (await self.read_ranges([(path, offset, n)]))[0]
        ranges = Ranges([path], [offset], [None if n is None else offset + n])
        await self._carry_out(ranges)
        [found] = ranges.answer("raise")
        return bytes(found)

    async def _carry_out(self, ranges: Ranges) -> None:
        """As of :class:`forebay.Client`."""
        session = await self._live()
        for revalidate in (False, True):
            opened: list[tuple[_native.File, int] | OSError] = []
            if ranges.unsized:
                opened = await _answer(lambda done: session.open_each(ranges.unsized, revalidate, done))
            reads = ranges.reads(opened)
            if ranges.take(await _answer(lambda done: session.read_each(reads, done, ranges.max_gap))):
                break

    async def read_into(self, reads: Iterable[tuple[AnyPath | AsyncFile, int, Target]]) -> list[int]:
        """As :meth:`forebay.Client.read_into`."""
        session = await self._live()
        named = [(_native_of(place, session), offset, target) for place, offset, target in reads]
        return await _answer(lambda done: session.read_into(named, done))

    async def read_into_device(
        self,
        reads: Iterable[tuple[AnyPath | AsyncFile, int, int, int]],
        *,
        device: int | str | None = None,
        stream: int = 0,
    ) -> list[int]:
        """As :meth:`forebay.Client.read_into_device`. When ``CancelledError`` is raised, nothing is copied any more."""
        session = await self._live()
        named = [(_native_of(place, session), offset, address, length) for place, offset, address, length in reads]
        number = device_number(device)
        return await _answer(lambda done: session.read_into_device(named, number, stream, done))

    async def read_ranges(self, ranges: Iterable[tuple[AnyPath | AsyncFile, int, int]]) -> list[bytes]:
        """As :meth:`forebay.Client.read_ranges`."""
        session = await self._live()
        named = [(_native_of(place, session), offset, n) for place, offset, n in ranges]
        return await _answer(lambda done: session.read_ranges(named, done))

    async def read_each(self, ranges: Iterable[tuple[AnyPath | AsyncFile, int, int]]) -> list[bytes | OSError]:
        """As :meth:`forebay.Client.read_each`."""
        session = await self._live()
        named = [(_native_of(place, session), offset, n) for place, offset, n in ranges]
        return await _answer(lambda done: session.read_each(named, done))

    async def write(self, path: AnyPath, data: ReadableBuffer, *, exclusive: bool = False) -> Entry:
        """As :meth:`forebay.Client.write`."""
        session = await self._live()
        return Entry._make(await _answer(lambda done: session.put(path, data, exclusive, done)))

    async def create(self, path: AnyPath, *, exclusive: bool = False) -> AsyncUpload:
        """As :meth:`forebay.Client.create`."""
        session = await self._live()
        return AsyncUpload(await _answer(lambda done: session.create(path, exclusive, done)))

    async def copy(self, source: AnyPath, target: AnyPath) -> Entry:
        """As :meth:`forebay.Client.copy`."""
        session = await self._live()
        return Entry._make(await _answer(lambda done: session.copy(source, target, done)))

    async def remove(self, path: AnyPath) -> None:
        """As :meth:`forebay.Client.remove`."""
        session = await self._live()
        await _answer(lambda done: session.remove(path, done))

    async def mkdir(self, path: AnyPath) -> Entry:
        """As :meth:`forebay.Client.mkdir`."""
        session = await self._live()
        return Entry._make(await _answer(lambda done: session.make_directory(path, done)))

    async def rmdir(self, path: AnyPath) -> None:
        """As :meth:`forebay.Client.rmdir`."""
        session = await self._live()
        await _answer(lambda done: session.remove_directory(path, done))

    async def refresh(self, path: AnyPath = "/", *, below: bool = False) -> None:
        """As :meth:`forebay.Client.refresh`."""
        session = await self._live()
        await _answer(lambda done: session.refresh(path, below, done))

    async def view(self, path: AnyPath | AsyncFile, offset: int, n: int) -> _native.View:
        """As :meth:`forebay.Client.view`."""
        session = await self._live()
        place = _native_of(path, session)
        return await _answer(lambda done: session.view(place, offset, n, done))

    async def prefetch(
        self,
        plan: Iterable[tuple[AnyPath | AsyncFile, int, int]],
        *,
        ahead: int = 64 << 20,
        to: Literal["here", "workers"] = "here",
    ) -> AsyncPrefetch:
        """As :meth:`forebay.Client.prefetch`. The plan is taken from on this loop, so it is not to wait for anything."""
        if to not in ("here", "workers"):
            raise ValueError(f"to is {to!r}; give \"here\" or \"workers\"")
        session = await self._live()
        named = ((_native_of(place, session), offset, n) for place, offset, n in plan)
        return AsyncPrefetch(Prefetch(self._connected, named, ahead, to))

    async def close(self) -> None:
        """As :meth:`forebay.Client.close`."""
        if self._twin is not None:
            await asyncio.to_thread(self._twin.close)
            return
        async with self._connecting:
            self._is_closed = True
            session, self._session = self._session, None
        if session is not None:
            await _answer(session.close)

    def forget(self) -> None:
        """Used after a fork, in the child."""
        self._connecting = asyncio.Lock()
        self._session = None

    def end(self) -> None:
        """Used at the end of the interpreter, when no loop runs."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            session.close()

    async def __aenter__(self) -> Self:
        """The client, connected, to be closed at the end of the block."""
        await self._live()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        await self.close()

    def __repr__(self) -> str:
        """Where it reads from."""
        return f"forebay.aio.AsyncClient({self._settings!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """The settings, credentials among them. What is connected stays here."""
        if self._twin is not None:
            return (AsyncClient.beside, (self._twin,))
        return (_restored, tuple(self._settings))

    async def _live(self) -> _native.Session:
        session = self._session if self._twin is None else self._twin._session
        return await self._connect() if session is None else session

    def _connected(self) -> _native.Session:
        """What :meth:`_live` gave, unless it was closed since."""
        session = self._session if self._twin is None else self._twin._session
        if session is None:
            raise ValueError("the client is closed; make another one")
        return session

    async def _connect(self) -> _native.Session:
        if self._twin is not None:
            return await asyncio.to_thread(self._twin._live)
        async with self._connecting:
            if self._is_closed:
                raise ValueError("the client is closed; make another one")
            if self._session is None:
                _logging.begin()
                session = await _answer(lambda done: _native.Session.start(*self._settings, done))
                self._session = session
            return self._session


class AsyncFile:
    """A version of a file, to be read. Made by :meth:`AsyncClient.open`; see :class:`forebay.File`. It has no position."""

    def __init__(
        self,
        client: AsyncClient,
        entry: Entry,
        described: tuple[bytes, int],
        session: _native.Session | None = None,
        native: _native.File | None = None,
    ) -> None:
        self._client = client
        self._described = described
        self._session = session
        self._native = native
        #: What was opened.
        self.entry = entry

    async def readinto(self, buffer: Target, offset: int, /) -> int:
        """Fill ``buffer`` from ``offset``; how many bytes were read: fewer only at the end of the file."""
        [count] = await self._client.read_into([(self, offset, buffer)])
        return count

    async def read_into_device(
        self, address: int, offset: int, n: int, *, device: int | str | None = None, stream: int = 0
    ) -> int:
        """Copy ``n`` bytes from ``offset`` to memory of a GPU; how many: fewer only at the end of the file."""
        [count] = await self._client.read_into_device([(self, offset, address, n)], device=device, stream=stream)
        return count

    async def pread(self, n: int, offset: int) -> bytes:
        """``n`` bytes from ``offset``, fewer only at the end of the file."""
        n = min(n, max(self.entry.size - offset, 0))
        [found] = await self._client.read_ranges([(self, offset, n)])
        return found

    async def view(self, offset: int, n: int) -> _native.View:
        """As :meth:`forebay.Client.view`."""
        return await self._client.view(self, offset, n)

    def __repr__(self) -> str:
        """Its path, and what it is of."""
        return f"<forebay.aio.AsyncFile {self.entry.path!r} of {self._client!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        """The client's settings, and which version this is."""
        return (AsyncFile, (self._client, self.entry, self._described))

    def native(self, session: _native.Session) -> _native.File:
        """It, as ``session`` has it."""
        if self._native is None or self._session is not session:
            self._native = session.reopen(*self._described)
            self._session = session
        return self._native


class AsyncUpload:
    """A file that is being written. Made by :meth:`AsyncClient.create`; see :class:`forebay.Upload`.

    A task that is cancelled while it writes gives the file up.
    """

    def __init__(self, native: _native.Writer) -> None:
        self._native = native

    async def write(self, data: ReadableBuffer) -> None:
        """As :meth:`forebay.Upload.write`."""
        await _answer(lambda done: self._native.write(data, done))

    async def finish(self) -> Entry:
        """As :meth:`forebay.Upload.finish`."""
        return Entry._make(await _answer(self._native.finish))

    async def abort(self) -> None:
        """As :meth:`forebay.Upload.abort`."""
        await _answer(self._native.abort)

    async def __aenter__(self) -> Self:
        """It, to be finished at the end of the block."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finishes it, or gives it up after an exception."""
        if kind is None:
            await self.finish()
        else:
            await self.abort()


class AsyncPrefetch:
    """Fetches that are under way. Made by :meth:`AsyncClient.prefetch`; see :class:`forebay.Prefetch`.

    >>> async with await client.prefetch([(path, 0, size) for path, size in order]) as prefetch:
    ...     for path, size in order:
    ...         use(await client.read(path, 0, size))
    ...         prefetch.advance()
    """

    def __init__(self, prefetch: Prefetch) -> None:
        self._prefetch = prefetch

    def advance(self, count: int = 1) -> None:
        """As :meth:`forebay.Prefetch.advance`. It waits for nothing."""
        self._prefetch.advance(count)

    async def wait(self, timeout: float | None = None) -> bool:
        """As :meth:`forebay.Prefetch.wait`."""
        loop, is_idle = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            # If the loop is closed, nobody waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(is_idle.set)

        if self._prefetch.wait(0):
            return True
        with self._prefetch.telling(tell):
            try:
                async with asyncio.timeout(timeout):
                    await is_idle.wait()
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        """As :meth:`forebay.Prefetch.close`."""
        self._prefetch.close()

    async def __aenter__(self) -> Self:
        """It, to be closed at the end of the block."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()


def _native_of(place: AnyPath | AsyncFile, session: _native.Session) -> AnyPath | _native.File:
    return place.native(session) if isinstance(place, AsyncFile) else place


async def _answer(start: Callable[[_Done], _Answer | _native.Operation]) -> _Answer:
    """What ``start`` answers, at once or by calling what it is given."""
    loop = asyncio.get_running_loop()
    # Before anything is begun: a task that is cancelled here has nothing to lose.
    if _turn.since is not None and time.monotonic() - _turn.since > _TURN:
        await asyncio.sleep(0)
        _turn.end()
    future: asyncio.Future[_Answer] = loop.create_future()

    def done(answer: Any, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(_settle, future, answer, error)
        except RuntimeError:
            # The loop is closed: nobody waits.
            pass

    started = start(done)
    if not isinstance(started, _native.Operation):
        if _turn.since is None:
            _turn.since = time.monotonic()
            loop.call_soon(_turn.end)
        return started
    try:
        return await future
    except BaseException:
        # Whatever ended the wait, a coroutine that is closed included: memory that was given by its address has no other guard. What has
        # ended takes no harm.
        started.cancel()
        with contextlib.suppress(RuntimeError):
            future.cancel()
        raise


def _settle(future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


def _restored(*settings: object) -> AsyncClient:
    client = AsyncClient.__new__(AsyncClient)
    client._begin(Settings._make(settings))
    return client
