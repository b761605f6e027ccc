"""Files that are being written."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from forebay import _native
from forebay._entry import Entry

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Upload:
    """A file that is being written, made by :meth:`Client.create`. A file of many gigabytes takes the memory of a few parts.

    >>> with client.create("/checkpoints/step-100") as upload:
    ...     for piece in pieces:
    ...         upload.write(piece)

    At the end of the block the file is there. If an exception ends it, or nobody finishes it, it never was. It is not copied to a forked
    process, and cannot be pickled.
    """

    def __init__(self, native: _native.Writer) -> None:
        """Files are created by clients."""
        self._native = native

    def write(self, data: ReadableBuffer) -> None:
        """Add bytes at the end. Waits for memory if the origin is slower than the writer.

        :raises OSError: what kept these or earlier bytes from the origin. The file is given up then.
        :raises ValueError: if it was finished or given up.
        """
        self._native.write(data)

    def finish(self) -> Entry:
        """Complete the file. When this returns, the origin has it; what it is."""
        return Entry._make(self._native.finish())

    def abort(self) -> None:
        """Give the file up. Nothing happens if it is finished."""
        self._native.abort()

    def __enter__(self) -> Self:
        """It, to be finished at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finishes it, or gives it up after an exception."""
        if kind is None:
            self.finish()
        else:
            self.abort()
