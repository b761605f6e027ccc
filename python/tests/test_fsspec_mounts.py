"""``forebay://`` for fsspec where several mounts lead to one object."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .test_cluster import Worker

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


@pytest.fixture
def fs(origin: Path, tmp_path: Path) -> Iterator[Any]:
    """A file system with two mounts of the directory, and one that nobody is told of to be the same."""
    program = os.environ.get("PYTHON_TESTS_PROGRAM")
    if not program:
        pytest.skip("the program forebay is not built: PYTHON_TESTS_PROGRAM does not name it")
    same = tmp_path / "same"
    same.symlink_to(origin)
    worker = Worker(program, origin, tmp_path, mounts=f"/a=file://{origin},/b=file://{origin},/c=file://{same}")
    fs = fsspec.filesystem("forebay", **worker.settings(), skip_instance_cache=True)
    yield fs
    fs.client.close()
    worker.end()


def test_what_is_moved_to_where_it_is_by_another_mount_stays(fs: Any, origin: Path) -> None:
    before = {name: (origin / name).read_bytes() for name in ["small", "large", "tree/00"]}
    for source, target, number in [
        ("/a/small", "/b/small", errno.EINVAL),
        ("/b/large", "/a/large", errno.EINVAL),
        ("/a/small", "/c/small", errno.ESTALE),
        ("/c/tree/00", "/b/tree", errno.ESTALE),
    ]:
        with pytest.raises(OSError) as refused:
            fs.mv(source, target)
        assert refused.value.errno == number, f"{source} to {target}: {refused.value}"
    assert {name: (origin / name).read_bytes() for name in before} == before
    fs.mv("/a/small", "/b/moved")
    fs.mv("/a/large", "/c/further")
    assert (origin / "moved").read_bytes() == before["small"] and (origin / "further").read_bytes() == before["large"]
    assert not (origin / "small").exists() and not (origin / "large").exists()


def test_a_tree_that_is_moved_into_itself_by_another_mount_is_not_lost(fs: Any, origin: Path) -> None:
    with pytest.raises(OSError) as refused:
        fs.mv("/a/tree/deep", "/b/tree/deep/in", recursive=True)
    assert refused.value.errno == errno.ENOTEMPTY
    assert (origin / "tree/deep/in/end").read_bytes() == b"end"
    with pytest.raises(OSError) as refused:
        fs.mv("/a/tree", "/b/tree", recursive=True)
    assert refused.value.errno == errno.ENOTEMPTY
    assert (origin / "tree/tree/deep/in/end").read_bytes() == b"end" and (origin / "tree/tree/19").exists()
