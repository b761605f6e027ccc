"""Processes that take samples as those of a `DataLoader` do, of PyTorch's or of the same shape. They have begun before a clock runs."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

PROCESSES = 4
#: As `prefetch_factor` of a `DataLoader` has it.
GIVEN = 2
METHODS = ("fork", "spawn")
#: In which every process has taken something, because none takes two.
PAUSE = 0.2


class Loader(Protocol):
    """What a `DataLoader` is here."""

    def read(self, order: Iterable[int]) -> Iterator[Any]:
        """An epoch: what was read for the samples with these numbers, in order."""
        ...

    def close(self) -> None:
        """Ends its processes."""


class Pool:
    """Processes that are given some samples ahead."""

    def __init__(self, method: str, begin: Callable[[], None], read: Callable[[Any], Any], samples: Sequence[Any]) -> None:
        self._read, self._samples = read, samples
        self._pool = multiprocessing.get_context(method).Pool(PROCESSES, begin)
        self._pool.map(time.sleep, [PAUSE] * PROCESSES, chunksize=1)

    def read(self, order: Iterable[int]) -> Iterator[Any]:
        under_way: deque[Any] = deque()
        for number in order:
            under_way.append(self._pool.apply_async(self._read, (self._samples[number],)))
            if len(under_way) >= PROCESSES * GIVEN:
                yield under_way.popleft().get()
        while under_way:
            yield under_way.popleft().get()

    def close(self) -> None:
        self._pool.close()
        self._pool.join()


class _Order:
    """A sampler with another order in each epoch."""

    def __init__(self) -> None:
        self.numbers: Iterable[int] = ()

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


class _Samples:
    """What a `DataLoader` asks for samples, in each of its processes."""

    def __init__(self, begin: Callable[[], None], read: Callable[[Any], Any], samples: Sequence[Any]) -> None:
        self._begin, self._read, self._samples = begin, read, samples

    def __getitem__(self, number: int) -> Any:
        if number < 0:
            self._begin()
            time.sleep(PAUSE)
            return None
        return self._read(self._samples[number])


def _unchanged(sample: Any) -> Any:
    """What becomes of a sample before it is sent."""
    return sample


class TorchLoader:
    """PyTorch's `DataLoader`, whose processes stay from epoch to epoch."""

    def __init__(self, method: str, begin: Callable[[], None], read: Callable[[Any], Any], samples: Sequence[Any]) -> None:
        data: Any = importlib.import_module("torch.utils.data")
        self._order = _Order()
        options: dict[str, Any] = {"num_workers": PROCESSES, "prefetch_factor": GIVEN, "multiprocessing_context": method}
        options |= {"batch_size": None, "collate_fn": _unchanged, "persistent_workers": True}
        self._loader: Any = data.DataLoader(_Samples(begin, read, samples), sampler=self._order, **options)
        # They are asked in turns: one for each.
        assert list(self.read([-1] * PROCESSES)) == [None] * PROCESSES

    def read(self, order: Iterable[int]) -> Iterator[Any]:
        self._order.numbers = order
        yield from self._loader

    def close(self) -> None:
        # They end with the iterator, which the loader keeps.
        del self._loader


def loader(
    is_torchs: bool, method: str, begin: Callable[[], None], read: Callable[[Any], Any], samples: Sequence[Any]
) -> Loader:
    """Processes that call ``begin`` once, and ``read`` for each sample: functions that can be pickled."""
    return TorchLoader(method, begin, read, samples) if is_torchs else Pool(method, begin, read, samples)


def title(is_torchs: bool, method: str) -> str:
    """What it is called in a table."""
    return f"`DataLoader`, {PROCESSES} processes ({method})" if is_torchs else f"{PROCESSES} processes as of a `DataLoader` ({method})"
