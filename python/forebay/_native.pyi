"""The native module, for the code of this package."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, SupportsIndex, TypeAlias, final, overload

from _typeshed import WriteableBuffer
from typing_extensions import CapsuleType

from forebay._client import File as _File

__version__: Final[str]

_Path: TypeAlias = str | bytes | PathLike[str]
_Place: TypeAlias = _Path | File | _File
_Target: TypeAlias = WriteableBuffer | tuple[int, int]
_Fields: TypeAlias = tuple[str, bool, int, int, str | None, str | None, bool]
# Is called once, by a thread of its own, with an answer or an exception, unless the call returned the answer.
_Done: TypeAlias = Callable[[Any, BaseException | None], object]

def after_fork_in_child(windows_dirs: Sequence[Path], /) -> None: ...
@final
class Operation:
    def cancel(self) -> None: ...

@final
class File:
    def description(self) -> tuple[bytes, int] | None: ...

@final
class Walk:
    @overload
    def next_page(self) -> list[_Fields] | None: ...
    @overload
    def next_page(self, done: _Done) -> list[_Fields] | Operation | None: ...

@final
class Session:
    @overload
    @staticmethod
    def start(
        etcd: Sequence[str],
        workers: Sequence[str],
        up: str | None,
        config: str | None,
        settings: Sequence[tuple[str, str]],
    ) -> Session: ...
    @overload
    @staticmethod
    def start(
        etcd: Sequence[str],
        workers: Sequence[str],
        up: str | None,
        config: str | None,
        settings: Sequence[tuple[str, str]],
        done: _Done,
    ) -> Session | Operation: ...
    @property
    def windows_dir(self) -> Path | None: ...
    @overload
    def stat(self, path: _Path, revalidate: bool) -> _Fields: ...
    @overload
    def stat(self, path: _Path, revalidate: bool, done: _Done) -> _Fields | Operation: ...
    @overload
    def listing(self, path: _Path) -> list[_Fields]: ...
    @overload
    def listing(self, path: _Path, done: _Done) -> list[_Fields] | Operation: ...
    def walk(self, path: _Path) -> Walk: ...
    @overload
    def open(self, path: _Path) -> tuple[File, _Fields]: ...
    @overload
    def open(self, path: _Path, done: _Done) -> tuple[File, _Fields] | Operation: ...
    def reopen(self, description: bytes, replicas: int) -> File: ...
    @overload
    def read_into(self, reads: Iterable[tuple[_Place, int, _Target]]) -> list[int]: ...
    @overload
    def read_into(self, reads: Iterable[tuple[_Place, int, _Target]], done: _Done) -> list[int] | Operation: ...
    @overload
    def read_ranges(self, ranges: Iterable[tuple[_Place, int, int]]) -> list[bytes]: ...
    @overload
    def read_ranges(self, ranges: Iterable[tuple[_Place, int, int]], done: _Done) -> list[bytes] | Operation: ...
    @overload
    def fetch(self, ranges: Iterable[tuple[_Place, int, int]], to_workers: bool) -> None: ...
    @overload
    def fetch(
        self, ranges: Iterable[tuple[_Place, int, int]], to_workers: bool, done: _Done
    ) -> Operation | None: ...
    @overload
    def view(self, place: _Place, offset: int, length: int) -> View: ...
    @overload
    def view(self, place: _Place, offset: int, length: int, done: _Done) -> View | Operation: ...
    @overload
    def close(self) -> None: ...
    @overload
    def close(self, done: _Done) -> Operation | None: ...

@final
class View:
    """Bytes of one version of a file, where they lie in the cache: a read-only buffer."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def nbytes(self) -> int:
        """The number of bytes."""
    @property
    def is_copy(self) -> bool:
        """Whether the bytes are in memory of their own."""
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[SupportsIndex, SupportsIndex] | None = None,
        dl_device: tuple[SupportsIndex, SupportsIndex] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
