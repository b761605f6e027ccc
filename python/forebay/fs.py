"""``forebay://`` for fsspec, and so for pandas, Polars, DuckDB, PyArrow, Zarr, datasets and whatever else reads through it.

>>> import fsspec
>>> fs = fsspec.filesystem("forebay", up="s3://my-bucket/datasets")
>>> fs.ls("/train")
>>> fs.cat_ranges(["/train/a", "/train/b"], 0, 1024)

The arguments are those of :class:`forebay.Client`. File systems with the same arguments share one client in a process, and with ``up``
one cache. Paths are those of the namespace: ``forebay:///dir/file``, ``forebay://dir/file`` and ``/dir/file`` are one file.

Nothing is cached here, neither bytes nor listings: the client knows what is current, as a mount does. ``refresh=True`` of ``info`` and
``ls``, and ``invalidate_cache``, have the origin asked. What waits for nothing is answered on the calling thread, without fsspec's loop.

What is written is there when its file is closed, whole or not at all; in a transaction, when that ends. What the ``with`` of
``fs.open`` writes never was if an exception ends it. A file system may be used in a forked process, by any number of threads, and be
pickled.
"""

# fsspec has no types.
# pyright: basic

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import os
import shutil
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from fsspec.asyn import AsyncFileSystem, _run_coros_in_chunks, get_loop, sync
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.utils import stringify_path

from forebay._client import Client, shared
from forebay._files import AsyncReadFile, AsyncWriteFile, Deferred, ReadFile, TextWriteFile, WriteFile, details
from forebay._local import bring, pieces
from forebay._moving import move
from forebay._ranges import Ranges
from forebay._settings import Setting, Settings
from forebay._upload import Upload
from forebay.aio import AsyncClient

__all__ = ["ForebayFileSystem"]

#: What says that there is nothing of a name, or that it cannot be one.
_NOTHING_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENAMETOOLONG})

#: Clients of file systems, in this process.
_clients: weakref.WeakValueDictionary[Settings, Client] = weakref.WeakValueDictionary()


class ForebayFileSystem(AsyncFileSystem):
    """Reads and writes a namespace of Forebay's through fsspec.

    :param etcd, workers, up, config, settings: as of :class:`forebay.Client`.
    :param asynchronous, loop, batch_size: as of fsspec's ``AsyncFileSystem``.
    """

    protocol = "forebay"
    root_marker = "/"
    #: Of whom fsspec's loop is.
    _pid: int

    def __init__(
        self,
        *,
        etcd: str | Iterable[str] | None = None,
        workers: str | Iterable[str] | None = None,
        up: str | os.PathLike[str] | None = None,
        config: str | os.PathLike[str] | None = None,
        asynchronous: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
        batch_size: int | None = None,
        use_listings_cache: bool | None = None,
        listings_expiry_time: float | None = None,
        max_paths: int | None = None,
        hf: Mapping[str, Any] | None = None,
        **settings: Setting,
    ) -> None:
        # `datasets` writes how to reach its hub into the options of its caller, whatever file system they are for.
        del hf
        # Of the listings cache that other file systems have, nothing is wanted.
        super().__init__(asynchronous=asynchronous, loop=loop, batch_size=batch_size, use_listings_cache=False)
        #: The client behind it. It is not to be closed: others may use it.
        self.client = shared(_clients, Settings.of(etcd, workers, up, config, settings))
        self._beside = AsyncClient.beside(self.client)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """fsspec's loop, of this process: the client behind it forgets its parent's connections after a fork, too."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._loop = None if self.asynchronous else get_loop()
        return self._loop

    @property
    def fsid(self) -> str:
        """Where it reads from."""
        return f"forebay_{self.client!r}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        for prefix in ("forebay://", "forebay::"):
            path = path.removeprefix(prefix)
        return "/" + path.strip("/")

    # What a name is.

    def info(self, path: str, refresh: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Name, size, type, ``mtime`` in seconds, ``ETag`` and ``version``, a name of this version of a file.

        :param refresh: ask the origin, whatever a cache says.
        """
        return details(self.client.stat(self._strip_protocol(path), revalidate=refresh))

    async def _info(self, path: str, refresh: bool = False, **kwargs: Any) -> dict[str, Any]:
        return details(await self._beside.stat(self._strip_protocol(path), revalidate=refresh))

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is anything of that name."""
        try:
            self.info(path, **kwargs)
        except OSError as error:
            return _is_there(error)
        return True

    async def _exists(self, path: str, **kwargs: Any) -> bool:
        try:
            await self._info(path, **kwargs)
        except OSError as error:
            return _is_there(error)
        return True

    # By fsspec's own, what cannot be told is no; a name that is put or copied to would be taken for a file's.

    def isdir(self, path: str) -> bool:
        """Whether it is a directory."""
        try:
            return self.info(path)["type"] == "directory"
        except OSError as error:
            return _is_there(error)

    async def _isdir(self, path: str) -> bool:
        try:
            return (await self._info(path))["type"] == "directory"
        except OSError as error:
            return _is_there(error)

    def isfile(self, path: str) -> bool:
        """Whether it is a file."""
        try:
            return self.info(path)["type"] == "file"
        except OSError as error:
            return _is_there(error)

    async def _isfile(self, path: str) -> bool:
        try:
            return (await self._info(path))["type"] == "file"
        except OSError as error:
            return _is_there(error)

    def modified(self, path: str) -> datetime.datetime:
        """When the object was last modified."""
        nanoseconds = self.client.stat(self._strip_protocol(path)).modified_ns
        if not nanoseconds:
            raise NotImplementedError(f"the origin does not know when {path} was modified")
        return datetime.datetime.fromtimestamp(nanoseconds / 1e9, datetime.timezone.utc)

    def ukey(self, path: str) -> str:
        """A name of this version of the file: it changes whenever the object is replaced."""
        return str(self.info(path).get("version") or super().ukey(path))

    # Directories.

    def ls(self, path: str, detail: bool = True, refresh: bool = False, **kwargs: Any) -> list[Any]:
        """The entries of a directory, by name.

        :param refresh: ask the origin, whatever a cache says.
        """
        path = self._strip_protocol(path)
        if refresh:
            self.client.refresh(path)
        return _listed(map(details, self.client.ls(path)), detail)

    async def _ls(self, path: str, detail: bool = True, refresh: bool = False, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if refresh:
            await self._beside.refresh(path)
        return _listed(map(details, await self._beside.ls(path)), detail)

    async def _find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        prefix: str = "",
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        start = path.rstrip("/") + "/" + prefix if prefix else ""
        if maxdepth is None:
            found = await self._walked(path, withdirs, start)
        else:
            found = await self._levels(path, withdirs, maxdepth, start, **kwargs)
        if prefix:
            found = {name: info for name, info in found.items() if name.startswith(start)}
        return found if detail else list(found)

    async def _walked(self, path: str, withdirs: bool, start: str) -> dict[str, Any]:
        """All that is below a path and begins so, by name; a directory is itself among it, however it begins."""
        found = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if withdirs and path != self.root_marker:
                found[path] = await self._info(path)
            async for entry in self._beside.find(path, dirs=withdirs, prefix=start):
                found[entry.path] = details(entry)
        return dict(sorted(found.items()))

    async def _levels(self, path: str, withdirs: bool, depth: int, start: str, **kwargs: Any) -> dict[str, Any]:
        """The same of so many levels, of each of which many directories are listed at once.

        What cannot be listed is an error, and not the end of a tree, as fsspec's own walk would have it.
        """
        if depth < 1:
            raise ValueError("maxdepth must be at least 1")
        found: dict[str, Any] = {}
        if withdirs and path != self.root_marker and await self._exists(path):
            found[path] = await self._info(path)
        directories = [path]
        for _ in range(depth):
            listings = await _run_coros_in_chunks(
                [self._ls(directory, **kwargs) for directory in directories],
                batch_size=self.batch_size,
                nofiles=True,
                return_exceptions=True,
            )
            directories = []
            for listing in listings:
                if isinstance(listing, (FileNotFoundError, NotADirectoryError)):
                    continue
                if isinstance(listing, BaseException):
                    raise listing
                infos: list[dict[str, Any]] = listing or []
                below = (info["name"] for info in infos if info["type"] == "directory")
                directories += [name for name in below if name.startswith(start) or start.startswith(name + "/")]
                found |= {info["name"]: info for info in infos if withdirs or info["type"] != "directory"}
        return dict(sorted(found.items()))

    async def _mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if not create_parents:
            await self._info(self._parent(path))
        await self._beside.mkdir(path)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        try:
            await self._beside.mkdir(path)
        except FileExistsError:
            if not (exist_ok and await self._isdir(path)):
                raise

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self.client.rmdir(self._strip_protocol(path))

    async def _rmdir(self, path: str) -> None:
        await self._beside.rmdir(self._strip_protocol(path))

    def invalidate_cache(self, path: str | None = None) -> None:
        """Have the workers ask the origin again about ``path`` and its listing, or about everything."""
        super().invalidate_cache(path)
        self.client.refresh(self._strip_protocol(path or "/"), below=path is None)

    # Reading.

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """The bytes of any number of ranges, read in one native call.

        Where a range has no end, or counts from the end, the sizes of those files are asked for in one call before.

        :param max_gap: how many bytes that lie between two ranges ``up`` may fetch rather than ask the origin twice: 512 KiB by default.
            64 KiB, which are the least that is fetched, may be in any case.
        :param on_error: ``"return"``: an exception takes the place of the bytes that cannot be read; else the first one is raised.
        """
        ranges = Ranges(self._names(paths), starts, ends, max_gap)
        self.client._carry_out(ranges)
        return ranges.answer(on_error)

    async def _cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        ranges = Ranges(self._names(paths), starts, ends, max_gap)
        await self._beside._carry_out(ranges)
        return ranges.answer(on_error)

    def _names(self, paths: list[str]) -> list[str]:
        if not isinstance(paths, list):
            raise TypeError("give a list of paths")
        return [self._strip_protocol(path) for path in paths]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The bytes of a file, or of a range of it, which may count from its end."""
        [found] = self.cat_ranges([path], [start], [end], on_error="raise")
        return bytes(found)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        [found] = await self._cat_ranges([path], [start], [end], on_error="raise")
        return bytes(found)

    async def _get_file(self, rpath: str, lpath: str, callback: Any = DEFAULT_CALLBACK, **kwargs: Any) -> None:
        rpath = self._strip_protocol(rpath)
        for is_again in (False, True):
            try:
                file = await self._beside.open(rpath)
            except IsADirectoryError:
                os.makedirs(lpath, exist_ok=True)
                return
            try:
                await bring(file, lpath, callback)
            except OSError as error:
                if is_again or error.errno != errno.ESTALE:
                    raise
            else:
                return
            # The file was replaced. Once more, of what is there now.
            await self._beside.stat(rpath, revalidate=True)
            callback.absolute_update(0)

    def open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        """A file, as of fsspec. Text, too, is given up if an exception ends its ``with``."""
        if "b" in mode or "r" in mode:
            return super().open(path, mode, *args, **kwargs)
        text = {name: kwargs.pop(name) for name in ("encoding", "errors", "newline") if name in kwargs}
        return TextWriteFile(self.open(path, mode.replace("t", "") + "b", *args, **kwargs), **text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        cache_type: str = "none",
        **kwargs: Any,
    ) -> ReadFile | WriteFile:
        path = self._strip_protocol(path)
        if mode == "rb":
            return ReadFile(self, self.client.open(path), block_size, cache_type, cache_options, **kwargs)
        if mode in {"wb", "xb", "ab"}:
            upload = self.client.create(path, exclusive=mode == "xb")
            return WriteFile(self, path, mode, upload, block_size, autocommit, **kwargs)
        raise NotImplementedError(f"files are read, or written anew: give rb, wb, xb or ab, not {mode}")

    async def open_async(self, path: str, mode: str = "rb", **kwargs: Any) -> AsyncReadFile | AsyncWriteFile:
        """A file for an event loop, whose ``read``, ``write`` and ``close`` are awaited."""
        path = self._strip_protocol(path)
        if mode == "rb":
            return AsyncReadFile(self, await self._beside.open(path))
        if mode in {"wb", "xb"}:
            return AsyncWriteFile(self, path, await self._beside.create(path, exclusive=mode == "xb"))
        raise ValueError(f"in an event loop files are opened as rb, wb or xb, not {mode}")

    # Writing.

    async def _pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        path, exclusive = self._strip_protocol(path), mode == "create"
        if self._intrans:
            await self._upload(path, _once(value), exclusive)
        else:
            await self._beside.write(path, value, exclusive=exclusive)

    async def _put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            await self._makedirs(rpath, exist_ok=True)
            return
        callback.set_size(os.path.getsize(lpath))
        await self._upload(rpath, pieces(lpath, callback), mode == "create")

    async def _upload(self, path: str, pieces: AsyncIterator[Any], exclusive: bool) -> None:
        """Make a path a file of these pieces, when a transaction ends, if there is one."""
        upload = await self._beside.create(path, exclusive=exclusive)
        try:
            async for piece in pieces:
                await upload.write(piece)
            if self._intrans:
                self.transaction.files.append(Deferred(Upload(upload._native)))
            else:
                await upload.finish()
        except BaseException:
            await upload.abort()
            raise

    async def _cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if path1 == path2:
            # An origin finds nothing to do, and fsspec's `mv` would then remove the only one there is.
            raise shutil.SameFileError(f"{path1} cannot be copied to itself")
        try:
            await self._beside.copy(path1, path2)
        except IsADirectoryError as error:
            if error.filename != path1:
                raise
            await self._makedirs(path2, exist_ok=True)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Move files: copy them, and remove the old ones once all are copied. Trees are moved whole."""
        if maxdepth is not None:
            raise ValueError("mv takes no maxdepth: what is further down would neither be moved nor stay")
        if not isinstance(path1, list) and not isinstance(path2, list):
            source, target = self._strip_protocol(path1), self._strip_protocol(path2)
            if source == target:
                return
            if recursive and target.startswith(source.rstrip("/") + "/"):
                # The copies would be removed with what they were made of.
                raise ValueError(f"{path1} cannot be moved to {path2}, which is in it")
        sync(self.loop, move, self, path1, path2, recursive)

    async def _rm_file(self, path: str, **kwargs: Any) -> None:
        await self._beside.remove(self._strip_protocol(path))

    async def _rm(
        self,
        path: Any,
        recursive: bool = False,
        batch_size: int | None = None,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        names = await self._expand_path(path, recursive=recursive, maxdepth=maxdepth)
        await self._rm_names(names, recursive, batch_size)

    async def _rm_names(self, names: list[str], recursive: bool, batch_size: int | None = None) -> None:
        """Remove these names; with ``recursive`` also directories, if nothing else is in them."""
        removing = [self._rm_file(name) for name in names]
        outcomes = await _run_coros_in_chunks(
            removing, batch_size=batch_size or self.batch_size, nofiles=True, return_exceptions=True
        )
        directories = []
        for name, outcome in zip(names, outcomes, strict=True):
            if recursive and isinstance(outcome, IsADirectoryError):
                directories.append(name)
            elif recursive and isinstance(outcome, FileNotFoundError):
                # A directory that was there for the sake of a file in it.
                continue
            elif isinstance(outcome, BaseException):
                raise outcome
        # Those in others first.
        for name in sorted(directories, key=lambda name: name.count("/"), reverse=True):
            with contextlib.suppress(FileNotFoundError):
                await self._rmdir(name)


def _is_there(error: OSError) -> bool:
    """Nothing is of that name, or could be. Any other error says nothing about that, and is raised."""
    if error.errno in _NOTHING_THERE:
        return False
    raise error


def _listed(entries: Iterable[dict[str, Any]], detail: bool) -> list[Any]:
    found = sorted(entries, key=lambda info: info["name"])
    return found if detail else [info["name"] for info in found]


async def _once(value: Any) -> AsyncIterator[Any]:
    yield value
