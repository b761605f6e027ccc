"""Fetching what will be read, in the order in which it will be."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from forebay import _native

if TYPE_CHECKING:
    from forebay._client import AnyPath, File

    #: A file or its path, where in it, and how many bytes.
    Range = tuple[AnyPath | File, int, int]
    #: The same as the native module has it, too.
    Planned = tuple[AnyPath | File | _native.File, int, int]

_Item = TypeVar("_Item")


class Window(Generic[_Item]):
    """Which items of a plan to fetch, so that those that were announced and not read hold a bounded number of bytes.

    It knows nothing of fetching. The plan is taken from as it is needed, so it may be endless.
    """

    def __init__(self, plan: Iterable[_Item], size: Callable[[_Item], int], ahead: int) -> None:
        self._plan: Iterator[_Item] | None = iter(plan)
        self._size = size
        self._ahead = ahead
        #: The sizes of what was announced and is not read.
        self._held: deque[int] = deque()
        self._bytes = 0
        #: What was taken from the plan, and did not fit.
        self._next: _Item | None = None
        #: What was read before it was announced.
        self._skip = 0

    def passed(self, count: int) -> None:
        """The next ``count`` items are read."""
        while count > 0 and self._held:
            self._bytes -= self._held.popleft()
            count -= 1
        if count > 0 and self._next is not None:
            self._next = None
            count -= 1
        self._skip += count

    def take(self) -> list[_Item]:
        """What is to be fetched now. One item at least is announced, however large it is; more once an eighth of the room is free."""
        if self._held and self._ahead - self._bytes < self._ahead // 8:
            return []
        taken: list[_Item] = []
        while (item := self._peek()) is not None:
            size = max(self._size(item), 0)
            if self._held and self._bytes + size > self._ahead:
                break
            self._next = None
            self._held.append(size)
            self._bytes += size
            taken.append(item)
        return taken

    def _peek(self) -> _Item | None:
        while self._next is None and self._plan is not None:
            self._next = next(self._plan, None)
            if self._next is None:
                self._plan = None
            elif self._skip > 0:
                self._skip -= 1
                self._next = None
        return self._next


class Prefetch:
    """Fetches that are under way. Made by :meth:`forebay.Client.prefetch`; ends when it is closed or collected.

    Tell it of what was read with :meth:`advance`, and it goes on. What cannot be fetched is no error here: whoever reads it meets it.
    After a fork the child has none of it.
    """

    def __init__(
        self,
        session: Callable[[], _native.Session],
        plan: Iterable[Planned],
        ahead: int,
        to: str,
    ) -> None:
        self._session = session
        self._to = to
        self._window: Window[Planned] = Window(plan, lambda wanted: wanted[2], ahead)
        self._under_way: set[_native.Operation] = set()
        #: To be called once nothing is under way, by whichever thread learns of it.
        self._when_idle: set[Callable[[], object]] = set()
        self._lock = threading.Lock()
        self._is_idle = threading.Condition(self._lock)
        self._is_closed = False
        self._process = os.getpid()
        self._begin()

    def advance(self, count: int = 1) -> None:
        """The next ``count`` ranges of the plan are read, or will not be: as much again is fetched."""
        if self._is_inherited():
            return
        with self._lock:
            self._window.passed(count)
        self._begin()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all that was begun has come, for ``timeout`` seconds at most; whether it has."""
        if self._is_inherited():
            return True
        with self._is_idle:
            return self._is_idle.wait_for(lambda: not self._under_way, timeout)

    @contextlib.contextmanager
    def telling(self, tell: Callable[[], object]) -> Generator[None, None, None]:
        """As long as it lasts: ``tell`` is called when nothing is under way, by any thread; at once if that is so now."""
        if self._is_inherited():
            tell()
            yield
            return
        with self._lock:
            self._when_idle.add(tell)
            is_idle = not self._under_way
        if is_idle:
            tell()
        try:
            yield
        finally:
            with self._lock:
                self._when_idle.discard(tell)

    def close(self) -> None:
        """Give up what is under way."""
        if self._is_inherited():
            return
        with self._lock:
            self._is_closed = True
            under_way, self._under_way = self._under_way, set()
            self._is_idle.notify_all()
            told = list(self._when_idle)
        for tell in told:
            tell()
        for operation in under_way:
            operation.cancel()

    def __enter__(self) -> Self:
        """It, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    def __del__(self) -> None:
        """Closes it; what its maker raised on the way has no lock."""
        with contextlib.suppress(Exception):
            self.close()

    def _begin(self) -> None:
        with self._lock:
            ranges = [] if self._is_closed else self._window.take()
        if not ranges:
            return
        told, session = _Told(self), self._session()
        # Whoever reads it will be told.
        with contextlib.suppress(OSError):
            started = session.fetch(ranges, self._to == "workers", told.ended)
            if isinstance(started, _native.Operation):
                told.begun(started)

    def _is_inherited(self) -> bool:
        """Another thread of the parent may have held the lock at the fork."""
        return self._process != os.getpid()

    def _has_begun(self, operation: _native.Operation) -> bool:
        """Whether it is wanted still: another thread may have closed this meanwhile."""
        with self._lock:
            if not self._is_closed:
                self._under_way.add(operation)
            return not self._is_closed

    def _has_ended(self, operation: _native.Operation) -> None:
        with self._lock:
            self._under_way.discard(operation)
            self._is_idle.notify_all()
            told = [] if self._under_way else list(self._when_idle)
        for tell in told:
            tell()


class _Told:
    """Of one operation, what its maker and the thread that tells of its end learn, whichever is first."""

    def __init__(self, prefetch: Prefetch) -> None:
        # What is under way must not keep it.
        self._prefetch = weakref.ref(prefetch)
        self._lock = threading.Lock()
        self._has_ended = False
        self._operation: _native.Operation | None = None

    def begun(self, operation: _native.Operation) -> None:
        with self._lock:
            self._operation = operation
            prefetch = None if self._has_ended else self._prefetch()
            is_wanted = prefetch is None or prefetch._has_begun(operation)
        if not is_wanted:
            operation.cancel()

    def ended(self, _answer: Any, _error: BaseException | None) -> None:
        with self._lock:
            self._has_ended = True
            operation = self._operation
        prefetch = self._prefetch()
        if prefetch is not None and operation is not None:
            prefetch._has_ended(operation)
