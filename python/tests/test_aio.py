"""The client for asyncio."""

from __future__ import annotations

import asyncio
import pickle
import time
from pathlib import Path

import pytest
from forebay import aio
from forebay.aio import AsyncClient, AsyncFile

from .conftest import SMALL, SOON, HungWorker, in_fork


def test_everything_that_the_synchronous_client_does(origin: Path) -> None:
    wanted = (origin / "large").read_bytes()

    async def use() -> None:
        async with AsyncClient(up=origin, **SMALL) as client:
            assert (await client.stat("/small")).size == 33
            assert sorted(entry.name for entry in await client.ls()) == ["empty", "large", "small", "tree"]
            assert len([entry async for entry in client.find()]) == 24
            assert await client.read("/large") == wanted
            file = await client.open("/large")
            assert await file.pread(10, 4 << 20) == wanted[4 << 20 : (4 << 20) + 10]
            buffers = [bytearray(1000) for _ in range(3)]
            counts = await client.read_into([(file, 0, buffers[0]), ("/large", 7, buffers[1]), ("/small", 0, buffers[2])])
            assert counts == [1000, 1000, 33]
            assert [bytes(buffer) for buffer in buffers[:2]] == [wanted[:1000], wanted[7:1007]]
            assert await client.read_ranges([("/large", 1, 2), (file, 3, 4)]) == [wanted[1:3], wanted[3:7]]
            assert bytes(await file.view(5, 6)) == wanted[5:11]
            with pytest.raises(FileNotFoundError):
                await client.open("/missing")
            again: AsyncFile = pickle.loads(pickle.dumps(file))
            assert await again.pread(3, 0) == wanted[:3]
            await again._client.close()
        with pytest.raises(ValueError, match="closed"):
            await client.stat("/")

    asyncio.run(use())


def test_a_task_that_is_answered_at_once_lets_others_run(origin: Path) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def use() -> None:
        async with AsyncClient(up=origin, **SMALL) as client:
            await client.read("/small")
            other = asyncio.create_task(tick())
            deadline = time.monotonic() + SOON
            # Of a read that is a hit, no other task would ever hear.
            while ticks < 3 and time.monotonic() < deadline:
                assert await client.read("/small", 0, 4) == b"what"
            other.cancel()
        assert ticks >= 3

    asyncio.run(use())


def test_a_turn_that_a_loop_left_unfinished_ends_with_the_next_read(origin: Path) -> None:
    async def use() -> None:
        async with AsyncClient(up=origin, **SMALL) as client:
            await client.read("/small")
            await asyncio.sleep(0)
            # As where a loop is stopped behind a hit, and never goes on.
            aio._turn.since = 0.0
            assert await client.read("/small", 0, 4) == b"what"
            assert aio._turn.since != 0.0

    asyncio.run(use())


def test_a_thousand_reads_at_once_are_each_their_own(origin: Path) -> None:
    wanted = (origin / "large").read_bytes()

    async def use() -> None:
        async with AsyncClient(up=origin, **SMALL) as client:
            offsets = [number * 9001 for number in range(1000)]
            found = await asyncio.gather(*(client.read("/large", offset, 4096) for offset in offsets))
            assert found == [wanted[offset : offset + 4096] for offset in offsets]

    asyncio.run(use())


def test_a_cancelled_read_is_over_when_its_task_is(hung_worker: HungWorker) -> None:
    async def use() -> None:
        client = AsyncClient(workers=hung_worker.address, network_shared_memory="off")
        buffer = bytearray(1000)
        task = asyncio.create_task(client.read_into([("/file", 0, buffer)]))
        async with asyncio.timeout(SOON):
            await asyncio.to_thread(hung_worker.is_asked.wait, SOON)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        # It is nobody else's: an exported buffer could not be resized.
        buffer.extend(b"more")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await client.stat("/file")
        await client.close()

    asyncio.run(use())


def test_a_read_whose_coroutine_is_closed_is_over(hung_worker: HungWorker) -> None:
    async def use() -> None:
        client = AsyncClient(workers=hung_worker.address, network_shared_memory="off")
        await client._live()
        buffer = bytearray(1000)
        read = client.read_into([("/file", 0, buffer)])
        # As a loop does that is ended before the read: it waits, and nobody will wake it.
        read.send(None)
        with pytest.raises(BufferError):
            buffer.extend(b"more")
        read.close()
        buffer.extend(b"more")
        await client.close()

    asyncio.run(use())


def test_a_forked_child_runs_a_loop_of_its_own(origin: Path) -> None:
    client = AsyncClient(up=origin, **SMALL)

    async def read() -> bytes:
        try:
            return await client.read("/small", 0, 4)
        finally:
            await client.close()

    async def connect() -> bytes:
        return await client.read("/small", 0, 4)

    assert asyncio.run(connect()) == b"what"
    assert in_fork(lambda: asyncio.run(read())) == "b'what'"
    assert asyncio.run(read()) == b"what"
