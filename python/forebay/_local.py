"""Local files, which a file system brings and sends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator
from typing import Any

from forebay._room import AT_ONCE, room_of_loop
from forebay.aio import AsyncFile

#: What one file is brought by.
_PIECE = 4 * AT_ONCE
#: What all files take together that an event loop brings at once. Some are written while others are read.
_BRINGING = 4 * _PIECE


async def bring(file: AsyncFile, lpath: str, callback: Any) -> None:
    """Make a local file of a version of a file."""
    callback.set_size(file.entry.size)
    length = min(_PIECE, file.entry.size)
    # A local file that cannot be opened is not ours to remove.
    async with room_of_loop(_BRINGING).taken(length):
        with open(lpath, "wb") as local:
            memory = memoryview(bytearray(length))
            offset = 0
            try:
                while count := await file.readinto(memory, offset):
                    await asyncio.to_thread(local.write, memory[:count])
                    callback.relative_update(count)
                    offset += count
                local.flush()
            except BaseException:
                # Nobody is to take a part for the whole.
                with contextlib.suppress(OSError):
                    _remove(local.fileno(), lpath)
                raise


def _remove(opened: int, lpath: str) -> None:
    """Remove the file that is open, where it lies: no link that leads to it, and neither a pipe nor a device (`/dev/null`)."""
    place, local = os.path.realpath(lpath), os.fstat(opened)
    if stat.S_ISREG(local.st_mode) and os.path.samestat(os.stat(place), local):
        os.unlink(place)


async def pieces(lpath: str, callback: Any) -> AsyncIterator[bytes]:
    """A local file from its beginning to its end."""
    with open(lpath, "rb", buffering=0) as local:
        while piece := await asyncio.to_thread(local.read, AT_ONCE):
            yield piece
            callback.relative_update(len(piece))
