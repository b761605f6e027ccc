"""``forebay://`` for fsspec: what a call that makes no sense, or that fails, leaves where it was."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import SMALL

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

from forebay._entry import Entry  # noqa: E402
from forebay.aio import AsyncClient, AsyncFile  # noqa: E402


@pytest.fixture
def fs(origin: Path) -> Iterator[Any]:
    """A file system with a worker of the directory in this process."""
    fs = fsspec.filesystem("forebay", up=f"file://{origin}", skip_instance_cache=True, **SMALL)
    yield fs
    fs.client.close()


def test_what_is_moved_to_where_it_is_stays(fs: Any, origin: Path) -> None:
    small = (origin / "small").read_bytes()
    fs.mv("small", "forebay:///small")
    fs.mv("/tree/", "tree", recursive=True)
    # Into the directories that they are in.
    with pytest.raises(shutil.SameFileError):
        fs.mv("/tree/00", "/tree")
    with pytest.raises(shutil.SameFileError):
        fs.mv("/tree", "/", recursive=True)
    with pytest.raises(shutil.SameFileError):
        fs.copy("/small", "small")
    with pytest.raises(shutil.SameFileError):
        fs.mv(["/small"], ["forebay://small"])
    for below in ["/tree/new", "tree/deep"]:
        with pytest.raises(ValueError, match="which is in it"):
            fs.mv("/tree", below, recursive=True)
    assert (origin / "small").read_bytes() == small
    assert (origin / "tree/00").exists() and (origin / "tree/deep/end").read_bytes() == b"end"
    fs.mv("/tree", "/tree2", recursive=True)
    assert (origin / "tree2/deep/end").read_bytes() == b"end" and not (origin / "tree").exists()


def test_what_is_moved_to_where_a_link_leads_to_it_stays(fs: Any, origin: Path) -> None:
    (origin / "alias").symlink_to("tree")
    one = (origin / "tree/00").read_bytes()
    with pytest.raises(OSError) as refused:
        fs.mv("/alias/00", "/tree/00")
    assert refused.value.errno == errno.EINVAL
    assert (origin / "tree/00").read_bytes() == one
    # What comes into the directory that is moved is not removed with it.
    with pytest.raises(OSError) as refused:
        fs.mv("/tree/deep", "/alias/deep/in", recursive=True)
    assert refused.value.errno == errno.ENOTEMPTY
    assert (origin / "tree/deep/in/end").read_bytes() == b"end" and not (origin / "tree/deep/end").exists()


def test_of_what_is_moved_nothing_is_removed_that_another_has_written(
    fs: Any, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = AsyncClient.copy

    async def copies(self: AsyncClient, source: str, target: str) -> Any:
        made = await copy(self, source, target)
        (origin / source[1:]).write_bytes(b"theirs")
        return made

    monkeypatch.setattr(AsyncClient, "copy", copies)
    with pytest.raises(OSError) as refused:
        fs.mv("/small", "/moved")
    assert refused.value.errno == errno.ESTALE
    assert (origin / "small").read_bytes() == b"theirs" and (origin / "moved").exists()


def test_a_tree_is_moved_whole_or_not_at_all(fs: Any, origin: Path) -> None:
    with pytest.raises(ValueError, match="maxdepth"):
        fs.mv("/tree", "/moved", recursive=True, maxdepth=1)
    assert (origin / "tree/deep/end").exists() and not (origin / "moved").exists()


def test_of_what_could_not_be_brought_only_a_file_is_removed(
    fs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> int:
        raise OSError(errno.EIO, "for the test")

    monkeypatch.setattr(AsyncFile, "readinto", fails)
    pipe, file, link = tmp_path / "pipe", tmp_path / "file", tmp_path / "link"
    os.mkfifo(pipe)
    file.write_bytes(b"before")
    link.symlink_to(file)
    # Or the pipe could not be opened to be written to.
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for place in [pipe, link]:
        with pytest.raises(OSError, match="for the test"):
            fs.get_file("/large", str(place))
    os.close(reader)
    assert pipe.is_fifo() and link.is_symlink() and not file.exists()


def test_what_is_put_or_copied_to_a_name_that_cannot_be_looked_at_goes_nowhere(
    fs: Any, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> Entry:
        raise OSError(errno.EIO, "for the test")

    monkeypatch.setattr(AsyncClient, "stat", fails)
    (tmp_path / "new").write_bytes(b"new")
    # It may be a directory, into which it is to come.
    with pytest.raises(OSError, match="for the test"):
        fs.put(str(tmp_path / "new"), "/target")
    with pytest.raises(OSError, match="for the test"):
        fs.copy("/small", "/target")
    assert not (origin / "target").exists()
