"""Plans that are announced: the window, which is pure, and fetches."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay
import forebay.torch
import pytest
from forebay._prefetch import Prefetch, Window
from forebay.aio import AsyncClient

from .conftest import SMALL, SOON, HungWorker, in_fork


def window(sizes: list[int], ahead: int) -> Window[int]:
    return Window(sizes, lambda size: size, ahead)


def test_no_more_is_announced_than_there_is_room_for_and_at_least_one() -> None:
    plan = window([30, 30, 30, 500, 1], 100)
    assert plan.take() == [30, 30, 30]
    assert plan.take() == []
    plan.passed(1)
    assert plan.take() == [], "the next is too large while others are held"
    plan.passed(2)
    assert plan.take() == [500]
    plan.passed(1)
    assert plan.take() == [1]
    plan.passed(1)
    assert plan.take() == []


def test_what_was_read_before_its_turn_is_not_fetched() -> None:
    plan = window([10, 11, 12, 13, 14], 20)
    assert plan.take() == [10]
    plan.passed(3)
    assert plan.take() == [13]
    plan.passed(100)
    assert plan.take() == []


def test_a_plan_is_taken_from_as_it_is_needed() -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield 1

    plan = Window(endless(), lambda size: size, 80)
    assert len(plan.take()) == 80 and len(taken) == 81
    plan.passed(5)
    assert plan.take() == [], "little by little would be a call for each"
    plan.passed(5)
    assert len(plan.take()) == 10


@pytest.mark.parametrize("seed", range(20))
def test_the_bytes_that_are_held_never_exceed_the_room(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.randrange(0, 40) for _ in range(300)]
    plan, announced, read = window(sizes, 100), 0, 0
    while read < len(sizes):
        taken = plan.take()
        assert taken == sizes[announced : announced + len(taken)]
        announced += len(taken)
        assert sum(sizes[read:announced]) <= 100
        assert announced > read, "there is always something to read"
        count = draw.randrange(1, announced - read + 1)
        plan.passed(count)
        read += count


def test_what_is_announced_is_fetched_and_a_view_of_it_waits_for_nothing(client: forebay.Client, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    with client.open("/large") as file, client.prefetch([(file, 0, 1 << 20), ("/small", 0, 1 << 30)]) as prefetch:
        assert prefetch.wait(30)
        assert client.read("/large", 0, 1 << 20) == wanted[: 1 << 20]
        assert client.read("/small") == (origin / "small").read_bytes()


def test_what_cannot_be_fetched_is_an_error_of_its_reader_alone(client: forebay.Client) -> None:
    for _ in range(2):
        with client.prefetch([("/missing", 0, 1), ("/small", 0, 4)], to="workers") as prefetch:
            prefetch.advance(5)
            assert prefetch.wait(30)
    with pytest.raises(FileNotFoundError):
        client.read("/missing")
    with pytest.raises(ValueError, match='give "here" or "workers"'):
        client.prefetch([], to="nowhere")  # type: ignore[arg-type]


def test_it_ends_when_it_is_closed_forgotten_or_forked(client: forebay.Client) -> None:
    plan = [("/large", 0, 9 << 20)] * 100
    prefetch = client.prefetch(plan)

    def use() -> str:
        prefetch.advance()
        # What is under way is so in the parent only.
        assert prefetch.wait(30)
        prefetch.close()
        return "left alone"

    assert in_fork(use) == "left alone"
    prefetch.close()
    prefetch.advance()
    assert prefetch.wait(0)
    for _ in range(50):
        client.prefetch(plan)
    assert client.read("/small", 0, 4) == b"what"


def test_what_begins_while_another_thread_closes_is_given_up(client: forebay.Client) -> None:
    is_closing = False

    def session() -> Any:
        if is_closing:
            # In the middle of `advance`.
            prefetch.close()
        return client._live()

    prefetch = Prefetch(session, [("/tree/00", 0, 10), ("/large", 0, 9 << 20)], 10, "here")
    assert prefetch.wait(30)
    is_closing = True
    prefetch.advance()
    assert not prefetch._under_way


def test_an_event_loop_has_a_plan_fetched_and_waits_for_it_beside_other_tasks(origin: Path) -> None:
    wanted = (origin / "large").read_bytes()

    async def use() -> None:
        async with AsyncClient(up=origin, **SMALL) as client:
            file = await client.open("/large")
            plan: list[tuple[Any, int, int]] = [(file, 0, 1 << 20), ("/small", 0, 1 << 30), ("/missing", 0, 1)]
            async with await client.prefetch(plan, ahead=4 << 20) as prefetch:
                assert await prefetch.wait(SOON)
                assert await client.read("/large", 0, 1 << 20) == wanted[: 1 << 20]
                prefetch.advance(2)
                assert all(await asyncio.gather(prefetch.wait(SOON), prefetch.wait()))
            prefetch.advance()
            assert await prefetch.wait(0)
            with pytest.raises(ValueError, match='give "here" or "workers"'):
                await client.prefetch([], to="nowhere")  # type: ignore[arg-type]
            async with await client.prefetch([("/tree/00", 0, 10)], to="workers") as prefetch:
                assert await prefetch.wait(SOON)
            late = await client.prefetch([("/large", 0, 10)] * 3, ahead=10)
        with pytest.raises(ValueError, match="closed"):
            late.advance()
        with pytest.raises(ValueError, match="closed"):
            await client.prefetch([])

    asyncio.run(use())


def test_an_event_loop_that_waits_for_what_never_comes_can_give_up(hung_worker: HungWorker) -> None:
    async def use() -> None:
        client = AsyncClient(workers=hung_worker.address, network_shared_memory="off")
        prefetch = await client.prefetch([("/file", 0, 10)])
        assert not await prefetch.wait(0)
        assert not await prefetch.wait(0.05)
        waiting = asyncio.create_task(prefetch.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not prefetch._prefetch._when_idle
        # Whoever closes it ends the waits of others.
        waiting = asyncio.create_task(prefetch.wait())
        await asyncio.sleep(0)
        prefetch.close()
        async with asyncio.timeout(SOON):
            assert await waiting
        await client.close()

    asyncio.run(use())


def test_a_plan_is_fetched_through_the_connection_of_a_client_beside(client: forebay.Client) -> None:
    async def use() -> None:
        beside = AsyncClient.beside(client)
        async with await beside.prefetch([("/large", 0, 9 << 20)]) as prefetch:
            assert await prefetch.wait(SOON)

    asyncio.run(use())


def test_many_threads_advance_one_plan(client: forebay.Client) -> None:
    paths = [f"/tree/{number % 20:02}" for number in range(2000)]
    with client.prefetch(((path, 0, 2000) for path in paths), ahead=50_000) as prefetch:

        def advance() -> None:
            for _ in range(50):
                prefetch.advance(5)

        threads = [threading.Thread(target=advance) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert prefetch.wait(30)


class StubSampler:
    """What torch's samplers are to a loader."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.count))
        random.Random(self.epoch).shuffle(order)
        return iter(order)


class Recorder:
    """A client that notes what is announced."""

    def __init__(self) -> None:
        self.announced: list[Any] = []
        self.advanced = 0
        self.is_closed = False

    def prefetch(self, plan: Any, *, ahead: int, to: str) -> Recorder:
        self.announced.extend(itertools.islice(plan, ahead))
        return self

    def advance(self, count: int) -> None:
        self.advanced += count

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True


def test_a_sampler_announces_the_order_that_it_hands_out() -> None:
    recorder: Any = Recorder()
    sampler = forebay.torch.AnnouncingSampler(StubSampler(50), recorder, lambda index: (f"/{index}", 0, index), ahead=10)
    sampler.set_epoch(3)
    order = list(sampler)
    inner = StubSampler(50)
    inner.set_epoch(3)
    assert order == list(inner) and len(sampler) == 50
    assert [path for path, _, _ in recorder.announced] == [f"/{index}" for index in order[:10]]
    assert recorder.advanced == 50 and recorder.is_closed


def test_batches_and_samples_of_several_files_are_announced_one_by_one() -> None:
    recorder: Any = Recorder()
    batches = [[1, 2], [3]]

    def where(index: int) -> Any:
        return [(f"/{index}.jpg", 0, 1), (f"/{index}.txt", 0, 1)]

    sampler = forebay.torch.AnnouncingSampler(batches, recorder, where)
    epoch = iter(sampler)
    assert next(epoch) == [1, 2] and recorder.advanced == 0
    assert next(epoch) == [3] and recorder.advanced == 4
    epoch.close()  # type: ignore[attr-defined]
    assert recorder.is_closed, "a loop that ends early ends the fetches"
    assert [path for path, _, _ in recorder.announced[:3]] == ["/1.jpg", "/1.txt", "/2.jpg"]


def test_an_epoch_reads_what_was_announced(client: forebay.Client, origin: Path) -> None:
    paths = [f"/tree/{number:02}" for number in range(20)]
    sampler = forebay.torch.AnnouncingSampler(StubSampler(20), client, lambda index: (paths[index], 0, 2000), to="here")
    for index in sampler:
        assert client.read(paths[index]) == (origin / paths[index][1:]).read_bytes()


def test_torchs_loader_takes_it(client: forebay.Client, origin: Path) -> None:
    data: Any = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    paths = [f"/tree/{number:02}" for number in range(20)]

    class Files(data.Dataset):  # type: ignore[misc, unused-ignore]
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> tuple[int, bytes]:
            return index, client.read(paths[index])

    sampler = forebay.torch.AnnouncingSampler(data.RandomSampler(Files()), client, lambda index: (paths[index], 0, 2000))
    for workers in (0, 2):
        seen = dict(data.DataLoader(Files(), batch_size=None, sampler=sampler, num_workers=workers))
        assert seen == {index: (origin / path[1:]).read_bytes() for index, path in enumerate(paths)}
