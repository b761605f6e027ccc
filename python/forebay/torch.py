"""A sampler for torch's ``DataLoader`` that announces the order of its epoch, so that what comes is fetched before it is read.

>>> sampler = torch.utils.data.RandomSampler(dataset)
>>> sampler = forebay.torch.AnnouncingSampler(sampler, client, lambda index: (paths[index], 0, sizes[index]))
>>> loader = torch.utils.data.DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=4)

A ``DataLoader`` takes anything that is iterable for a sampler, so this imports nothing of torch's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from forebay._client import Client

if TYPE_CHECKING:
    from forebay._prefetch import Range

__all__ = ["AnnouncingSampler"]

_Index = TypeVar("_Index")


class AnnouncingSampler(Generic[_Index]):
    """What another sampler draws, announced to a client.

    :param sampler: of indices, or of batches of them.
    :param client: a client of the cluster whose workers are to fetch, or the one that reads if the loader has no workers.
    :param where: what is read for an index: ``(path or file, offset, n)``, or a list of them.
    :param ahead: how many bytes may be fetched ahead of what was handed out.
    :param to: where to: as of :meth:`forebay.Client.prefetch`. Processes of a loader have no memory in common, so what they are to read
        is fetched to the workers of the cluster, unless ``num_workers=0``.
    """

    def __init__(
        self,
        sampler: Iterable[_Index],
        client: Client,
        where: Callable[[Any], Range | list[Range]],
        *,
        ahead: int = 256 << 20,
        to: Literal["here", "workers"] = "workers",
    ) -> None:
        self.sampler = sampler
        self._client, self._where, self._ahead = client, where, ahead
        self._to: Literal["here", "workers"] = to

    def __iter__(self) -> Iterator[_Index]:
        """An epoch. The order is drawn as far ahead as it is announced, and no further."""
        handed_out, announced = itertools.tee(self.sampler)
        plan = itertools.chain.from_iterable(map(self._ranges, announced))
        with self._client.prefetch(plan, ahead=self._ahead, to=self._to) as prefetch:
            for item in handed_out:
                yield item
                prefetch.advance(len(self._ranges(item)))

    def __len__(self) -> int:
        """How many items an epoch has, if the sampler knows."""
        return len(cast(Sized, self.sampler))

    def set_epoch(self, epoch: int) -> None:
        """As of a ``DistributedSampler``."""
        cast(Any, self.sampler).set_epoch(epoch)

    def _ranges(self, item: Any) -> list[Range]:
        indices: Sequence[Any] = cast("Sequence[Any]", item) if isinstance(item, (list, tuple)) else [item]
        ranges: list[Range] = []
        for index in indices:
            found = self._where(index)
            ranges.extend(found if isinstance(found, list) else [found])
        return ranges
