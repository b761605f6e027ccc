"""Files that fsspec opens: of the version that was there, read without a cache of fsspec's; and files that are written."""

# fsspec has no types.
# pyright: basic

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any, cast

from fsspec.asyn import AbstractAsyncStreamedFile
from fsspec.spec import AbstractBufferedFile

from forebay._room import AT_ONCE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    from forebay._client import File
    from forebay._entry import Entry
    from forebay._upload import Upload
    from forebay.aio import AsyncFile, AsyncUpload
    from forebay.fs import ForebayFileSystem

#: What is read at once where lines are wanted.
_LINES = 64 << 10
_NEWLINE = b"\n"


def details(entry: Entry) -> dict[str, Any]:
    """What fsspec wants to know of a name."""
    found: dict[str, Any] = {
        "name": entry.path,
        "size": entry.size,
        "type": "file" if entry.is_file else "directory",
    }
    if entry.modified_ns:
        # Seconds since 1970, as of local files.
        found["mtime"] = entry.modified_ns / 1e9
    if entry.etag is not None:
        found["ETag"] = entry.etag
    if entry.version is not None:
        found["version"] = entry.version
    return found


class ReadFile(AbstractBufferedFile):
    """A version of a file, to be read: :class:`forebay.File` with what fsspec's users expect.

    Unless a ``cache_type`` is asked for, reads go to memory of the caller's, and nothing is kept here but a piece for lines.
    """

    def __init__(
        self,
        fs: ForebayFileSystem,
        file: File,
        block_size: int | str | None = None,
        cache_type: str = "none",
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # The size is that of the version that is open, whatever a caller believes.
        kwargs.pop("size", None)
        self._file = file
        self._details = details(file.entry)
        self._is_direct = cache_type == "none"
        #: Where it begins, and bytes of the file.
        self._lines: tuple[int, bytes] = (0, b"")
        super().__init__(
            fs,
            file.name,
            "rb",
            cast(Any, block_size or "default"),
            cache_type=cache_type,
            cache_options=cache_options,
            size=file.entry.size,
            **kwargs,
        )

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill ``buffer`` from the position on; how many bytes were read: fewer only at the end of the file."""
        self._check_open()
        if not self._is_direct:
            return int(super().readinto(buffer))
        count = self._file.readinto(buffer, self.loc)
        self.loc += count
        return count

    def readline(self, size: int | None = -1, /) -> bytes:
        """The bytes up to the next newline, that included; at most ``size``, if that is not negative."""
        self._check_open()
        limit = self.size if size is None or size < 0 else size
        pieces: list[bytes] = []
        length = 0
        while length < limit and (piece := self._rest_of_line()):
            pieces.append(piece)
            length += len(piece)
            if piece.endswith(_NEWLINE):
                break
        if length > limit:
            self.loc -= length - limit
        return b"".join(pieces)[:limit]

    def close(self) -> None:
        """Let go of it."""
        super().close()
        # fsspec has files that their users cannot close.
        if self.closed:
            self._file.close()

    def __reduce__(self) -> tuple[object, ...]:
        """The file system, and which version this is."""
        file = self._file
        described = (file.entry, (file._description, file._replicas))
        cache = (self.blocksize, self.cache.name if self.cache else "none")
        return (_reopened, (self.fs, *described, *cache, self.loc))

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed; open it again")

    def _rest_of_line(self) -> bytes:
        """What the piece that was read last, or the next one, has of the line at the position."""
        at, lines = self._lines
        start = self.loc - at
        if not 0 <= start < len(lines):
            start, lines = 0, cast(Any, self.cache)._fetch(self.loc, min(self.loc + _LINES, self.size))
            self._lines = (self.loc, lines)
        end = lines.find(_NEWLINE, start)
        piece = lines[start : end + 1 if end >= 0 else None]
        self.loc += len(piece)
        return piece

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._file.pread(max(end - start, 0), start)


def _reopened(
    fs: ForebayFileSystem, entry: Entry, described: tuple[bytes, int], block_size: int, cache_type: str, position: int
) -> ReadFile:
    from forebay._client import File

    file = ReadFile(fs, File._described(fs.client, entry, described), block_size, cache_type)
    file.seek(position)
    return file


class WriteFile(AbstractBufferedFile):
    """A file that is being written. It is there, whole, when it is closed; in a transaction, when that ends.

    If an exception ends its ``with``, it never was.
    """

    # Of fsspec's, which has no types.
    buffer: io.BytesIO
    closed: bool

    def __init__(
        self,
        fs: ForebayFileSystem,
        path: str,
        mode: str,
        upload: Upload,
        block_size: int | str | None = None,
        autocommit: bool = True,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("size", None)
        self._upload = upload
        self._is_given_up = False
        super().__init__(fs, path, mode, cast(Any, block_size or AT_ONCE), autocommit=autocommit, **kwargs)
        if mode == "ab":
            try:
                self._begin_with(path)
            except BaseException:
                # Or fsspec would make what was copied by now the file, once this is collected.
                self.discard()
                raise

    def write(self, data: ReadableBuffer, /) -> int:
        """Add bytes at the end; how many. What is long is sent as it is."""
        length = memoryview(data).nbytes
        if length < int(self.blocksize) or self.closed or self.forced:
            return int(super().write(data))
        if self.buffer.tell():
            self._upload.write(self.buffer.getvalue())
            self.buffer = io.BytesIO()
        self._upload.write(data)
        self.loc += length
        return length

    def close(self) -> None:
        """Complete the file; in a transaction, send what is left of it."""
        if self.closed:
            return
        try:
            if not self.forced:
                self.flush(force=True)
        finally:
            self.closed = True

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Completes it, or gives it up after an exception."""
        if kind is None or self.closed:
            self.close()
        else:
            self.discard()

    def commit(self) -> None:
        """Have the file there, at the end of a transaction, unless it was given up before."""
        if not self._is_given_up:
            self.close()
            self._upload.finish()

    def discard(self) -> None:
        """Have it never been."""
        self.closed = self._is_given_up = True
        self._upload.abort()

    def _upload_chunk(self, final: bool = False) -> bool:
        self._upload.write(self.buffer.getvalue())
        if final and self.autocommit:
            self._upload.finish()
        return True

    def _begin_with(self, path: str) -> None:
        """An object cannot be added to: it is written anew, with what it has at the beginning."""
        with contextlib.suppress(FileNotFoundError):
            # The origin is asked: with what is merely believed, what somebody else has written since would be lost.
            self.fs.client.stat(path, revalidate=True)
            with self.fs.client.open(path) as before:
                while piece := before.pread(AT_ONCE, self.loc):
                    self._upload.write(piece)
                    self.loc += len(piece)


class TextWriteFile(io.TextIOWrapper):
    """Text that is being written to a :class:`WriteFile`, or to what compresses for one."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Completes the file, or gives it up after an exception."""
        file: Any = self.buffer
        if kind is not None and isinstance(file, WriteFile) and not file.closed:
            file.discard()
        self.close()


class AsyncReadFile(AbstractAsyncStreamedFile):
    """A version of a file, to be read in an event loop."""

    def __init__(self, fs: ForebayFileSystem, file: AsyncFile) -> None:
        self._file = file
        self._details = details(file.entry)
        super().__init__(fs, file.entry.path, "rb", cache_type="none", size=file.entry.size)

    async def _fetch_range(self, start: int, end: int) -> bytes:
        return await self._file.pread(max(end - start, 0), start)


class AsyncWriteFile(AbstractAsyncStreamedFile):
    """A file that is being written in an event loop. One that is not closed never was."""

    closed: bool

    def __init__(self, fs: ForebayFileSystem, path: str, upload: AsyncUpload) -> None:
        self._upload = upload
        super().__init__(fs, path, "wb", cast(Any, AT_ONCE))

    async def close(self) -> None:
        """Complete the file."""
        if self.closed:
            return
        try:
            if not self.forced:
                await self.flush(force=True)
        finally:
            self.closed = True

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        """Completes it, or gives it up after an exception."""
        if kind is None:
            await self.close()
        else:
            self.closed = True
            await self._upload.abort()

    async def _upload_chunk(self, final: bool = False) -> bool:
        await self._upload.write(self.buffer.getvalue())
        if final:
            await self._upload.finish()
        return True

    def __del__(self) -> None:
        """Nothing: the native module gives up what nobody can finish any more."""


class Deferred:
    """An upload that a transaction finishes or gives up."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload

    def commit(self) -> None:
        """Have the file there."""
        self._upload.finish()

    def discard(self) -> None:
        """Have it never been."""
        self._upload.abort()
