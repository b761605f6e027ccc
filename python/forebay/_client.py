"""The synchronous client."""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from forebay import _logging, _native, _processes
from forebay._devices import device_number
from forebay._entry import Entry, checked_depth
from forebay._prefetch import Prefetch
from forebay._ranges import LONG, Ranges
from forebay._settings import Setting, Settings
from forebay._upload import Upload

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    #: A path of the namespace, absolute: ``/dir/file``.
    AnyPath = str | bytes | os.PathLike[str]
    #: Memory to read into: a writable, contiguous buffer, or an address and a length in bytes.
    Target = WriteableBuffer | tuple[int, int]


class Client:
    """Reads files of a namespace through the cache.

    It may be used by any number of threads. In a forked process it connects anew when it is first used. Pickled, it is its settings.

    One of these says where to read from; if none does, the configuration has to (``FOREBAY_CONFIG``, the environment,
    ``/etc/forebay/forebay.toml``):

    :param etcd: the URLs of the etcd servers of a cluster.
    :param workers: the workers of a fixed list, ``[NAME=]HOST:PORT``, in a list or with commas between.
    :param up: an origin to cache in this process: ``s3://bucket/prefix``, ``gs://``, ``az://``, ``http(s)://``, ``file:///`` or a
        directory. Its memory is ``worker_memory_size``.

    :param config: a configuration file in the place of the machine's.
    :param settings: keys of the configuration, with ``_`` for ``.``: ``client_request_timeout="10s"``.
    :raises ValueError: if the settings make no sense.
    :raises OSError: if what they name cannot be reached.
    """

    def __init__(
        self,
        *,
        etcd: str | Iterable[str] | None = None,
        workers: str | Iterable[str] | None = None,
        up: str | os.PathLike[str] | None = None,
        config: str | os.PathLike[str] | None = None,
        **settings: Setting,
    ) -> None:
        self._begin(Settings.of(etcd, workers, up, config, settings))
        self._live()

    @classmethod
    def _of(cls, settings: Settings) -> Client:
        """One that connects when it is first used."""
        client = cls.__new__(cls)
        client._begin(settings)
        return client

    def _begin(self, settings: Settings) -> None:
        self._settings = settings
        self._session: _native.Session | None = None
        #: Not kept from its own thread: a signal's handler may use the client that its thread connects.
        self._connecting = threading.RLock()
        self._is_closed = False
        _processes.register(self)

    def stat(self, path: AnyPath, *, revalidate: bool = False) -> Entry:
        """What ``path`` is.

        :param revalidate: ask the origin, whatever a cache says.
        :raises FileNotFoundError: if there is no such name.
        """
        return Entry._make(self._live().stat(path, revalidate))

    def ls(self, path: AnyPath = "/") -> list[Entry]:
        """The entries of a directory, in the origin's order; of a file, its own.

        :raises FileNotFoundError: if there is no such name.
        """
        return [Entry._make(fields) for fields in self._live().listing(path)]

    def find(
        self,
        path: AnyPath = "/",
        *,
        dirs: bool = False,
        maxdepth: int | None = None,
        prefix: AnyPath | None = None,
    ) -> Iterator[Entry]:
        """All files below ``path``, with bounded memory; of a file, itself.

        :param dirs: directories, too, each before what is in it.
        :param maxdepth: no more levels than these: 1 is what is in ``path`` itself.
        :param prefix: only those whose whole path begins so, such as ``/logs/2026-``. Directories that cannot have any are not listed.
        :raises FileNotFoundError: if there is no such name.
        """
        walk = self._live().walk(path, checked_depth(maxdepth), prefix)
        while (page := walk.next_page()) is not None:
            for entry in map(Entry._make, page):
                if dirs or entry.is_file:
                    yield entry

    def open(self, path: AnyPath) -> File:
        """The file that is at ``path`` now, to be read.

        :raises FileNotFoundError: if there is no such name.
        :raises IsADirectoryError: if it is a directory.
        """
        session = self._live()
        native, fields = session.open(path)
        return File._of(self, Entry._make(fields), session, native)

    def read(self, path: AnyPath, offset: int = 0, n: int | None = None) -> bytes:
        """``n`` bytes of a file, or all that follow ``offset``; fewer only at the end of the file."""
        if offset < 0:
            raise ValueError(f"{offset} is no offset; give one from 0 on")
        if n is not None and n <= LONG:
            return self._live().read_ranges([(path, offset, n)])[0]
        ranges = Ranges([path], [offset], [None if n is None else offset + n])
        self._carry_out(ranges)
        [found] = ranges.answer("raise")
        return bytes(found)

    def _carry_out(self, ranges: Ranges) -> None:
        """Read ranges: once more, as files are now, if one was replaced since its size was known."""
        session = self._live()
        for revalidate in (False, True):
            opened = session.open_each(ranges.unsized, revalidate) if ranges.unsized else []
            if ranges.take(session.read_each(ranges.reads(opened), max_gap=ranges.max_gap)):
                break

    def read_into(self, reads: Iterable[tuple[AnyPath | File, int, Target]]) -> list[int]:
        """Carry out any number of reads ``(path or file, offset, buffer)`` in one call.

        Each fills its buffer, and is shorter only at the end of its file. A buffer is anything writable and contiguous, or
        ``(address, length)`` of memory that stays allocated until this returns, such as pinned memory; two of them must not overlap.
        After an exception, an interrupt too, nothing writes to them any more; what had arrived is there.

        :return: how many bytes each read got.
        :raises OSError: the first error, with its path; ESTALE if a file was replaced while it was open.
        """
        return self._live().read_into(reads)

    def read_into_device(
        self,
        reads: Iterable[tuple[AnyPath | File, int, int, int]],
        *,
        device: int | str | None = None,
        stream: int = 0,
    ) -> list[int]:
        """Carry out any number of reads ``(path or file, offset, address, length)`` into memory of a GPU, by CUDA.

        Some pieces are copied while others are read. Bytes that lie in the memory of a worker on this host are copied by the GPU from
        there, others from pinned buffers (64 MiB for a GPU and client). The memory must stay allocated until this returns, and nothing
        else may use it meanwhile. When it returns the bytes are there, for every stream; after an exception nothing is copied there any
        more.

        :param device: of which GPU the memory is: its number, or ``"cuda:0"``; by default that of the first address. Other GPUs, and
            memory of the host, are refused.
        :param stream: the handle of a CUDA stream that uses the memory before, such as ``torch.cuda.current_stream().cuda_stream``: copies
            come after what it has by now. By default it is the default stream.
        :return: how many bytes each read got: fewer only at the end of the file.
        :raises OSError: the first error; what CUDA refuses, by its name; ENODEV if there is no driver or no such GPU, EFAULT if the memory
            is not the GPU's.
        """
        return self._live().read_into_device(reads, device_number(device), stream)

    def read_ranges(self, ranges: Iterable[tuple[AnyPath | File, int, int]]) -> list[bytes]:
        """The bytes of any number of ranges ``(path or file, offset, n)``, in one call."""
        return self._live().read_ranges(ranges)

    def read_each(self, ranges: Iterable[tuple[AnyPath | File, int, int]]) -> list[bytes | OSError]:
        """As :meth:`read_ranges`, but the bytes that cannot be read are an exception in the list, and the others are there."""
        return self._live().read_each(ranges)

    def write(self, path: AnyPath, data: ReadableBuffer, *, exclusive: bool = False) -> Entry:
        """Make ``path`` a file of these bytes, whole or not at all. Directories above it need not be there.

        :param exclusive: only if there is nothing of that name. The origin is asked first. Of two who do so at once, one does, if the file
            is no longer than a part (``write.part_size``) and the origin promises it; else both may.
        :return: what it is then.
        :raises FileExistsError: with ``exclusive``.
        :raises OSError: EROFS where nothing can be changed, and what keeps the origin from taking it.
        """
        return Entry._make(self._live().put(path, data, exclusive))

    def create(self, path: AnyPath, *, exclusive: bool = False) -> Upload:
        """Begin to write a file, piece by piece: nothing is seen of it before it is finished. The arguments are those of :meth:`write`."""
        return Upload(self._live().create(path, exclusive))

    def copy(self, source: AnyPath, target: AnyPath) -> Entry:
        """Make ``target`` a file with the bytes that ``source`` has now: by the origin itself, if both are on one."""
        return Entry._make(self._live().copy(source, target))

    def remove(self, path: AnyPath) -> None:
        """Remove a file.

        :raises FileNotFoundError: if there is no such name.
        :raises IsADirectoryError: if it is a directory.
        """
        self._live().remove(path)

    def mkdir(self, path: AnyPath) -> Entry:
        """Make a directory, and those above it.

        :raises FileExistsError: if there is anything of that name.
        """
        return Entry._make(self._live().make_directory(path))

    def rmdir(self, path: AnyPath) -> None:
        """Remove an empty directory."""
        self._live().remove_directory(path)

    def refresh(self, path: AnyPath = "/", *, below: bool = False) -> None:
        """Have the workers ask the origin again about ``path`` and its listing, whatever they remember.

        :param below: about everything below it, too.
        """
        self._live().refresh(path, below)

    def view(self, path: AnyPath | File, offset: int, n: int) -> _native.View:
        """``n`` bytes of a file where they lie in the cache, to be read as a buffer.

        Nothing is copied if they lie in one piece in memory of this process or of a worker on this host. They stay as they are for as
        long as the view, or an array that was made of it, is there; until then they take memory from the cache, of which views may
        hold a quarter. Otherwise the view is a copy (``View.is_copy``). Views do not outlive a fork.
        """
        return self._live().view(path, offset, n)

    def prefetch(
        self,
        plan: Iterable[tuple[AnyPath | File, int, int]],
        *,
        ahead: int = 64 << 20,
        to: Literal["here", "workers"] = "here",
    ) -> Prefetch:
        """Announce what will be read, ``(path or file, offset, n)`` in that order, and have it fetched before.

        The plan is taken from as it is needed, and may be endless. ``Prefetch.advance(count)`` says how much of it was read; fetched is
        what follows, at most ``ahead`` bytes. They take memory from what is cached: of ``worker.memory.size`` with ``up``, else of
        ``client.memory.size``. The fetches end when what this returns is closed or forgotten.

        :param to: ``"here"``, for reads of this process; ``"workers"`` if others read, such as the workers of a ``DataLoader``, or not
            all of it.
        """
        if to not in ("here", "workers"):
            raise ValueError(f"to is {to!r}; give \"here\" or \"workers\"")
        return Prefetch(self._live, plan, ahead, to)

    def close(self) -> None:
        """Ends the client's connections, and with ``up`` the cache. Views stay."""
        with self._connecting:
            self._is_closed = True
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def end(self) -> None:
        """Used at the end of the interpreter."""
        # A thread that connects may do so for as long as a server does not answer. It goes with the process.
        if self._connecting.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._connecting.release()

    def forget(self) -> None:
        """Used after a fork, in the child."""
        # Another thread of the parent may have held the lock.
        self._connecting = threading.RLock()
        self._session = None

    def __enter__(self) -> Self:
        """The client, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        """Where it reads from."""
        return f"forebay.Client({self._settings!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """The settings, credentials among them. What is connected stays here."""
        return (_restored, tuple(self._settings))

    def _live(self) -> _native.Session:
        session = self._session
        return self._connect() if session is None else session

    def _connect(self) -> _native.Session:
        unused: _native.Session | None = None
        with self._connecting:
            if self._session is None and not self._is_closed:
                _logging.begin()
                unused = self._keep(_native.Session.start(*self._settings))
            session = self._session
        if unused is not None:
            unused.close()
        if session is None:
            raise ValueError("the client is closed; make another one")
        return session

    def _keep(self, started: _native.Session) -> _native.Session | None:
        """Make ``started`` the session, or give it back: a signal's handler may have connected or closed the client meanwhile."""
        # Nothing is called in between, so no handler comes in between, either.
        if self._session is None and not self._is_closed:
            self._session = started
            return None
        return started


class File(io.RawIOBase):
    """A version of a file, to be read. Made by :meth:`Client.open`.

    All reads are of the version that was opened. If the object is replaced and the bytes are not cached, a read raises ``OSError`` with
    ESTALE; open the path again. It is the same version in a forked process, and in one that it was pickled to.
    """

    _client: Client
    _entry: Entry
    _description: bytes
    _replicas: int
    _session: _native.Session | None
    _opened: _native.File | None
    _position: int

    def __init__(self) -> None:
        """Files are opened by clients."""
        raise TypeError("open files with Client.open")

    @classmethod
    def _of(cls, client: Client, entry: Entry, session: _native.Session, native: _native.File) -> File:
        described = native.description()
        if described is None:
            raise RuntimeError("the process was forked while a file was opened; open it again")
        file = cls._described(client, entry, described)
        file._session, file._opened = session, native
        return file

    @classmethod
    def _described(cls, client: Client, entry: Entry, described: tuple[bytes, int], position: int = 0) -> File:
        file = cls.__new__(cls)
        file._client, file._entry = client, entry
        file._description, file._replicas = described
        file._session = file._opened = None
        file._position = position
        return file

    @property
    def entry(self) -> Entry:
        """What was opened."""
        return self._entry

    @property
    def name(self) -> str:
        """Its path."""
        return self._entry.path

    @property
    def mode(self) -> str:
        """It is read, as bytes."""
        return "rb"

    def readinto(self, buffer: Target, offset: int | None = None, /) -> int:
        """Fill ``buffer`` from ``offset``, or from the position, which then moves; short only at the end of the file.

        :return: how many bytes were read; 0 at the end.
        """
        start = self._position if offset is None else offset
        [count] = self._client.read_into([(self, start, buffer)])
        if offset is None:
            self._position = start + count
        return count

    def read_into_device(
        self, address: int, offset: int, n: int, *, device: int | str | None = None, stream: int = 0
    ) -> int:
        """Copy ``n`` bytes from ``offset`` to memory of a GPU, as :meth:`Client.read_into_device` does.

        :return: how many bytes were read: fewer only at the end of the file. The position does not move.
        """
        [count] = self._client.read_into_device([(self, offset, address, n)], device=device, stream=stream)
        return count

    def pread(self, n: int, offset: int) -> bytes:
        """``n`` bytes from ``offset``, fewer only at the end of the file. The position does not move."""
        n = min(n, max(self._entry.size - offset, 0))
        return self._client.read_ranges([(self, offset, n)])[0]

    def view(self, offset: int, n: int) -> _native.View:
        """As :meth:`Client.view`."""
        return self._client.view(self, offset, n)

    def read(self, size: int | None = -1, /) -> bytes:
        """``size`` bytes from the position on; all that follow if it is negative or ``None``."""
        rest = max(self._entry.size - self._position, 0)
        found = self.pread(rest if size is None or size < 0 else min(size, rest), self._position)
        self._position += len(found)
        return found

    def readall(self) -> bytes:
        """All that follows the position."""
        return self.read()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position; where it is then."""
        self._native_file()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._entry.size}.get(whence)
        if base is None:
            raise ValueError(f"whence is {whence}; give os.SEEK_SET, os.SEEK_CUR or os.SEEK_END")
        if base + offset < 0:
            raise ValueError(f"{base + offset} is no position; give one from 0 on")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The position."""
        return self._position

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def close(self) -> None:
        """Lets go of it."""
        self._session = self._opened = None
        super().close()

    def __repr__(self) -> str:
        """Its path, and what it is of."""
        return f"<forebay.File {self._entry.path!r} of {self._client!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        """The client's settings, and which version this is."""
        described = (self._description, self._replicas)
        return (File._described, (self._client, self._entry, described, self._position))

    def _native_file(self) -> _native.File:
        """Of this process: the native module calls this for files that are read from."""
        if self.closed:
            raise ValueError("the file is closed; open it again")
        session = self._client._live()
        if self._opened is None or self._session is not session:
            self._opened = session.reopen(self._description, self._replicas)
            self._session = session
        return self._opened


#: Clients that came from elsewhere: those with the same settings are one.
_came: weakref.WeakValueDictionary[Settings, Client] = weakref.WeakValueDictionary()
#: Of looking for a client. Not kept from its own thread: a signal's handler may look for one while its thread does.
_looking = threading.RLock()


def shared(clients: weakref.WeakValueDictionary[Settings, Client], settings: Settings) -> Client:
    """The one of ``clients`` with these settings, or else a new one, which connects when it is first used."""
    made = Client._of(settings)
    with _looking:
        client = clients.get(settings)
        if client is None or client._is_closed:
            client = clients[settings] = made
        return client


def _restored(*settings: object) -> Client:
    return shared(_came, Settings._make(settings))


def _renew_lock() -> None:
    global _looking
    _looking = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
