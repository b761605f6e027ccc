"""Views of the cache."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import forebay
import numpy
import pytest

from .conftest import SMALL, content


def test_a_view_is_a_read_only_buffer_of_the_files_bytes(client: forebay.Client, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    view = client.view("/large", 100, 1000)
    assert (len(view), view.nbytes, bytes(view)) == (1000, 1000, wanted[100:1100])
    shown = memoryview(view)
    assert shown.readonly and shown.c_contiguous and shown.format == "B"
    with pytest.raises((BufferError, TypeError)):
        memoryview(view)[0] = 1
    with pytest.raises(TypeError):
        pickle.dumps(view)


def test_what_was_read_is_shown_without_a_copy_and_stays_while_anything_shows_it(
    client: forebay.Client, origin: Path
) -> None:
    wanted = (origin / "large").read_bytes()
    client.read("/large")
    view = client.view("/large", 0, 64 << 10)
    assert not view.is_copy
    array = numpy.frombuffer(memoryview(view), numpy.uint32)
    del view
    gc.collect()
    assert array.tobytes() == wanted[: 64 << 10]
    client.close()
    assert array.tobytes() == wanted[: 64 << 10]


def test_a_view_ends_with_the_file_and_one_over_blocks_is_a_copy(client: forebay.Client, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    end = client.view("/large", len(wanted) - 10, 100)
    assert bytes(end) == wanted[-10:]
    assert len(client.view("/large", len(wanted), 10)) == len(client.view("/empty", 0, 10)) == 0
    across = client.view("/large", (4 << 20) - 50, 100)
    assert across.is_copy and bytes(across) == wanted[(4 << 20) - 50 : (4 << 20) + 50]


def test_views_hold_their_part_of_the_cache_and_are_copies_beyond_it(tmp_path: Path) -> None:
    size, count = 1 << 20, 48
    for number in range(count):
        (tmp_path / str(number)).write_bytes(content(number, size))
    with forebay.Client(up=tmp_path, **SMALL) as client:
        views = [client.view(f"/{number}", 0, size) for number in range(count)]
        # A quarter of 64 MiB, and no more.
        shared = [view for view in views if not view.is_copy]
        assert 0 < len(shared) <= 16
        # The rest of the cache is used by others meanwhile.
        for _ in range(2):
            for number in range(count):
                assert client.read(f"/{number}") == content(number, size)
        for number, view in enumerate(views):
            assert bytes(view) == content(number, size)
        del views, shared, view
        gc.collect()
        assert not client.view("/0", 0, size).is_copy


def test_numpy_takes_a_view_by_dlpack_and_knows_that_it_is_read_only(client: forebay.Client, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    view: Any = client.view("/large", 0, 4096)
    assert view.__dlpack_device__() == (1, 0)
    tensor = numpy.from_dlpack(view)
    assert tensor.dtype == numpy.uint8 and tensor.tobytes() == wanted[:4096]
    assert not tensor.flags.writeable
    copy = numpy.from_dlpack(view, copy=True)
    copy[:] = 0
    del view
    gc.collect()
    assert tensor.tobytes() == wanted[:4096]
    assert numpy.asarray(client.view("/small", 0, 4)).tobytes() == b"what"


def test_a_consumer_that_does_not_know_read_only_tensors_is_refused(client: forebay.Client) -> None:
    view = client.view("/small", 0, 4)
    with pytest.raises(BufferError, match="frombuffer"):
        view.__dlpack__()
    with pytest.raises(BufferError, match="CPU"):
        view.__dlpack__(max_version=(1, 0), dl_device=(2, 0))
    # One that nobody takes frees itself.
    capsule = view.__dlpack__(max_version=(1, 1))
    assert "dltensor_versioned" in repr(capsule)
