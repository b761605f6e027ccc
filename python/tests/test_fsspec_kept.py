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

from forebay.aio import AsyncFile  # noqa: E402


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
