"""Which elements an index takes of a tensor, and where they lie.

Errors are those of the package ``safetensors``, to the word, whose own tests compare them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from types import EllipsisType
from typing import SupportsIndex, cast

#: What a slice is indexed with: numbers, slices whose steps are positive, and at most one ``...``; or an empty list.
Item = SupportsIndex | slice | EllipsisType
Index = Item | list[int] | tuple[Item, ...]
#: Of a slice with a step, what begins closer together is read with what lies between: bytes come in pages.
_CLOSE = 4096


class SafetensorError(Exception):
    """A file is none of the format, or has no such tensor."""


# Where everybody has it from.
SafetensorError.__module__ = "forebay.safetensors"


def taken(shape: tuple[int, ...], index: Index, is_lenient: bool) -> tuple[list[range], list[int]]:
    """What an index takes of each dimension, and which dimensions are left.

    :param is_lenient: whether slices may go beyond the shape.
    """
    if isinstance(index, list):
        if index:
            raise SafetensorError("Non empty lists are not implemented")
        index = slice(0, 0)
    asked: list[Item] = list(index) if isinstance(index, tuple) else [index]
    if sum(item is ... for item in asked) > 1:
        raise SafetensorError("Only one ellipsis (...) is allowed in slice index")
    missing = len(shape) - sum(item is not ... for item in asked)
    # What is written down in errors.
    written = len(asked) if ... not in asked else max(len(shape), len(asked) - 1)
    if ... not in asked:
        asked.append(...)
    place = asked.index(...)
    asked[place : place + 1] = [slice(None)] * missing
    items = [_resolved(dimension, size, item) for dimension, (size, item) in enumerate(zip(shape, asked, strict=False))]
    wrong = "more slicing indexes than dimensions in tensor" if missing < 0 else None
    parts: list[range] = []
    for dimension, (size, item) in enumerate(zip(shape, items, strict=False)):
        part = range(*item.indices(size)) if isinstance(item, slice) else range(item, item + 1)
        bounds = [item.start or 0, item.stop or 0] if isinstance(item, slice) else [item + 1]
        if max(bounds) > size and not (is_lenient and isinstance(item, slice)):
            beyond = bounds[0] if isinstance(item, slice) and bounds[0] >= size else max(bounds) - 1
            wrong = wrong or f"index {beyond} out of bounds for tensor dimension #{dimension} of size {size}"
        parts.append(part)
    if wrong is not None:
        all_of_them: Iterable[Item] = items if missing >= 0 else asked
        shown = [_shown(item) for item in all_of_them][:written]
        raise SafetensorError(f"Error during slicing [{', '.join(shown)}] with shape {list(shape)}: {wrong}")
    return parts, [dimension for dimension, item in enumerate(items) if isinstance(item, slice)]


def _resolved(dimension: int, size: int, item: Item) -> int | slice:
    """A number, from the beginning; or a slice without a step below one."""
    if isinstance(item, slice):
        if item.step is not None and item.step < 1:
            raise SafetensorError(f"Slice step must be a positive integer, got {item.step}")
        return item
    try:
        number = operator.index(cast("SupportsIndex", item))
    except TypeError:
        text = f"Unsupported slice index at position {dimension}: expected slice, int, or ellipsis"
        raise SafetensorError(text) from None
    if number < -size:
        raise SafetensorError(f"Invalid index {number} for dimension {dimension} of size {size}")
    return number + size if number < 0 else number


def _shown(item: Item) -> str:
    """As it is written between brackets."""
    if not isinstance(item, slice):
        return str(item)
    start, stop = ("" if bound is None else str(bound) for bound in (item.start, item.stop))
    return f"{start}:{stop}" if item.step in (None, 1) else f"{start}:{stop}:{item.step}"


def _whole(shape: tuple[int, ...], parts: list[range]) -> int:
    """The first dimension from which on all are taken whole: what is behind it belongs to one run."""
    whole = len(shape)
    while whole > 0 and parts[whole - 1] == range(shape[whole - 1]):
        whole -= 1
    return whole


def together(shape: tuple[int, ...], parts: list[range], width: int) -> tuple[list[range], int | None]:
    """What to read for it, and the dimension of which only each so many-th is to be kept, if there is one: runs that would begin
    closely together are one."""
    whole = _whole(shape, parts)
    if whole == 0:
        return parts, None
    last = parts[whole - 1]
    if len(last) < 2 or last.step == 1 or last.step * math.prod(shape[whole:]) * width > _CLOSE:
        return parts, None
    return [*parts[: whole - 1], range(last[0], last[-1] + 1), *parts[whole:]], whole - 1


def runs(shape: tuple[int, ...], parts: list[range]) -> Iterator[tuple[int, int]]:
    """Where the elements of a part lie, in order: runs of them, each with its first element and how many there are."""
    whole = _whole(shape, parts)
    inner = math.prod(shape[whole:])
    if whole == 0:
        yield 0, inner
        return
    strides = [math.prod(shape[dimension + 1 :]) for dimension in range(whole)]
    last = parts[whole - 1]
    # Those of the last dimension lie side by side, but for a step.
    is_one_run = last.step == 1
    outer = parts[: whole - 1] if is_one_run else parts[:whole]
    base, count = (last.start * strides[-1], len(last) * inner) if is_one_run else (0, inner)

    def place(dimension: int, at: int) -> Iterator[tuple[int, int]]:
        if dimension == len(outer):
            yield at, count
            return
        for position in outer[dimension]:
            yield from place(dimension + 1, at + position * strides[dimension])

    yield from place(0, base)
