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
        #: How many were read, which the window does not know yet.
        self._passed: deque[int] = deque([0])
        #: Without a lock, as what follows: a signal's handler that interrupts who has it may wait for what a thread of the native module
        #: is to tell. Each step is one operation of a set.
        self._under_way: set[_native.Operation] = set()
        #: To be called once nothing is under way, by whichever thread learns of it.
        self._when_idle: set[Callable[[], object]] = set()
        #: Of the window. Not kept from its own thread, and `_is_taking` tells a handler that it is busy.
        self._lock = threading.RLock()
        self._is_taking = False
        self._is_closed = False
        self._process = os.getpid()
        self._begin()

    def advance(self, count: int = 1) -> None:
        """The next ``count`` ranges of the plan are read, or will not be: as much again is fetched."""
        if self._is_inherited():
            return
        self._passed.append(count)
        self._begin()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all that was begun has come, for ``timeout`` seconds at most; whether it has."""
        if self._is_inherited():
            return True
        # `Condition` and `Event` have locks that a handler would wait for.
        waiting = threading.Lock()
        waiting.acquire()

        def tell() -> None:
            # Others may have told of it before.
            with contextlib.suppress(RuntimeError):
                waiting.release()

        with self.telling(tell):
            return waiting.acquire(timeout=-1 if timeout is None else max(timeout, 0))

    @contextlib.contextmanager
    def telling(self, tell: Callable[[], object]) -> Generator[None, None, None]:
        """As long as it lasts: ``tell`` is called when nothing is under way, by any thread; at once if that is so now."""
        if self._is_inherited():
            tell()
            yield
            return
        self._when_idle.add(tell)
        try:
            if not self._under_way:
                tell()
            yield
        finally:
            self._when_idle.discard(tell)

    def close(self) -> None:
        """Give up what is under way."""
        if self._is_inherited():
            return
        # First: what begins from now on is given up by who begins it.
        self._is_closed = True
        under_way = list(self._under_way)
        self._under_way.clear()
        self._tell()
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
        """Closes it; what its maker raised on the way is not whole."""
        with contextlib.suppress(Exception):
            self.close()

    def _begin(self) -> None:
        ranges = self._taken()
        if not ranges:
            return
        told, session = _Told(self), self._session()
        # Whoever reads it will be told.
        with contextlib.suppress(OSError):
            started = session.fetch(ranges, self._to == "workers", told.ended)
            if isinstance(started, _native.Operation):
                self._has_begun(told, started)

    def _taken(self) -> list[Planned]:
        """What is to be fetched now."""
        taken: list[Planned] = []
        with self._lock:
            if self._is_taking:
                # A handler, or the plan itself: what it interrupted looks at `_passed` once more.
                return taken
            self._is_taking = True
            try:
                while self._passed:
                    self._window.passed(self._passed.popleft())
                    if not self._is_closed:
                        taken += self._window.take()
            finally:
                self._is_taking = False
        return taken

    def _is_inherited(self) -> bool:
        """What is under way is so in the parent only."""
        return self._process != os.getpid()

    def _has_begun(self, told: _Told, operation: _native.Operation) -> None:
        told.operation = operation
        # Nothing is called in between, so no handler comes there, which would wait for what has ended.
        if not told.has_ended:
            self._under_way.add(operation)
        # Another thread may have come there.
        if told.has_ended or self._is_closed:
            self._has_ended(operation)
        if self._is_closed:
            operation.cancel()

    def _has_ended(self, operation: _native.Operation) -> None:
        self._under_way.discard(operation)
        if not self._under_way:
            self._tell()

    def _tell(self) -> None:
        for tell in list(self._when_idle):
            tell()


class _Told:
    """Of one operation, what its maker and the thread that tells of its end learn, whichever is first."""

    def __init__(self, prefetch: Prefetch) -> None:
        # What is under way must not keep it.
        self._prefetch = weakref.ref(prefetch)
        self.operation: _native.Operation | None = None
        self.has_ended = False

    def ended(self, _answer: Any, _error: BaseException | None) -> None:
        # First: the maker looks at it when it has named the operation, so one of the two removes that.
        self.has_ended = True
        prefetch, operation = self._prefetch(), self.operation
        if prefetch is not None and operation is not None:
            prefetch._has_ended(operation)
