"""Memory that the tasks of an event loop share."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncGenerator

#: What is read or written at once: a part of an upload, as `write.part_size` is unless it was changed, is sent without a copy.
AT_ONCE = 8 << 20


class Room:
    """So many bytes, of which tasks take what they need for a time; who comes first is served first.

    Of one event loop. What is larger than all of it has all of it.
    """

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        #: Who waits, and for how many bytes, the first one first.
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def taken(self, wanted: int) -> AsyncGenerator[None, None]:
        """``wanted`` bytes, as long as it lasts."""
        count = min(wanted, self._size)
        if self._waiting or count > self._free:
            await self._wait(count)
        else:
            self._free -= count
        try:
            yield
        finally:
            self._give_back(count)

    async def _wait(self, count: int) -> None:
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (count, given)
        self._waiting.append(waiter)
        try:
            await given
        except BaseException:
            if given.done() and not given.cancelled():
                # It was given in the moment in which the task was cancelled.
                self._give_back(count)
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
                # Behind it there may be those for whom there is room.
                self._give_back(0)
            raise

    def _give_back(self, count: int) -> None:
        self._free += count
        while self._waiting and self._waiting[0][0] <= self._free:
            count, given = self._waiting.popleft()
            # One that was cancelled may not have run since.
            if not given.done():
                self._free -= count
                given.set_result(None)


_rooms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Room] = weakref.WeakKeyDictionary()


def room_of_loop(size: int) -> Room:
    """The one of the loop that runs: of ``size`` bytes, if nobody has asked for it before."""
    loop = asyncio.get_running_loop()
    room = _rooms.get(loop)
    if room is None:
        room = _rooms[loop] = Room(size)
    return room
