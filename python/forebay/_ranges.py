"""Ranges of files as fsspec and others name them, as reads that a client carries out in one call. Pure."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import Any

#: A range that is said to be longer is first compared with its file, so that no memory is taken for bytes that there are not.
LONG = 16 << 20


class Ranges:
    """Ranges ``(path, start, end)``, any of which may be counted from the end of its file, or go on to there.

    What lies between them is not read. At most `max_gap` bytes of it may be fetched to save a request, where that is not ``None``.
    """

    def __init__(
        self,
        paths: Sequence[Any],
        starts: Iterable[Any] | int | None,
        ends: Iterable[Any] | int | None,
        max_gap: int | None = None,
    ) -> None:
        self.max_gap = None if max_gap is None else min(max(max_gap, 0), LONG)
        self._ranges = list(zip(paths, _for_each(paths, starts), _for_each(paths, ends), strict=True))
        #: The paths of which the size has to be known first, each once.
        self.unsized = list(dict.fromkeys(path for path, start, end in self._ranges if _needs_size(start, end)))
        self._found: list[bytes | OSError | None] = []
        self._numbers: list[int] = []

    def reads(self, opened: Iterable[tuple[Any, int] | OSError]) -> list[tuple[Any, int, int]]:
        """The reads, now that the files at the paths of `unsized` are open, as ``(file, size)``, or cannot be opened."""
        files = dict(zip(self.unsized, opened, strict=True))
        self._found, self._numbers = [None] * len(self._ranges), []
        reads: list[tuple[Any, int, int]] = []
        for number, (path, start, end) in enumerate(self._ranges):
            if not _needs_size(start, end):
                read = (path, start or 0, max(end - (start or 0), 0))
            elif isinstance(known := files[path], OSError):
                self._found[number] = known
                continue
            else:
                file, size = known
                first, last, _ = slice(start, end).indices(size)
                read = (file, first, max(last - first, 0))
            self._numbers.append(number)
            reads.append(read)
        return reads

    def take(self, outcomes: Iterable[bytes | OSError]) -> bool:
        """Take what the reads gave. False if a file was replaced after it was opened: all of it is to be done once more."""
        is_current = True
        for number, outcome in zip(self._numbers, outcomes, strict=True):
            self._found[number] = outcome
            if isinstance(outcome, OSError) and outcome.errno == errno.ESTALE:
                _, start, end = self._ranges[number]
                is_current = is_current and not _needs_size(start, end)
        return is_current

    def answer(self, on_error: str) -> list[Any]:
        """The bytes of each range, with ``on_error="return"`` an exception where there are none.

        :raises OSError: the first, with any other ``on_error``.
        """
        if on_error != "return":
            for found in self._found:
                if isinstance(found, OSError):
                    raise found
        return list(self._found)


def _for_each(paths: Sequence[Any], limits: Iterable[Any] | int | None) -> list[Any]:
    return [*limits] if isinstance(limits, Iterable) else [limits] * len(paths)


def _needs_size(start: int | None, end: int | None) -> bool:
    return end is None or end < 0 or (start or 0) < 0 or end - (start or 0) > LONG
