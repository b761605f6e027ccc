"""Names, files and errors."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import forebay
import pytest
from forebay._settings import Settings
from forebay.aio import AsyncClient

from .conftest import SMALL, SOON, content


def test_stat_says_what_a_name_is(client: forebay.Client) -> None:
    small = client.stat("/small")
    assert (small.path, small.name, small.is_file, small.size) == ("/small", "small", True, 33)
    assert small.modified_ns > 0 and small.version is not None
    assert client.stat("/tree").is_dir and client.stat("/").is_dir
    assert client.stat(Path("/small")) == client.stat(b"/small") == small


def test_ls_and_find_have_every_name_once(client: forebay.Client) -> None:
    assert sorted(entry.name for entry in client.ls()) == ["empty", "large", "small", "tree"]
    assert [entry.path for entry in client.ls("/small")] == ["/small"]
    found = [entry.path for entry in client.find()]
    assert len(found) == len(set(found)) == 24 and "/tree/deep/end" in found
    below = [entry.path for entry in client.find("/tree", dirs=True)]
    assert "/tree/deep" in below and "/tree" not in below
    assert below.index("/tree/deep") < below.index("/tree/deep/end")


def test_find_stays_within_a_depth_and_a_prefix(client: forebay.Client) -> None:
    assert sorted(entry.path for entry in client.find(maxdepth=1)) == ["/empty", "/large", "/small"]
    assert [entry.path for entry in client.find("/tree", dirs=True, maxdepth=1) if entry.is_dir] == ["/tree/deep"]
    assert len(list(client.find(maxdepth=2))) == 23 and len(list(client.find(maxdepth=3))) == 24
    assert [entry.path for entry in client.find(prefix="/tree/d")] == ["/tree/deep/end"]
    assert sorted(entry.path for entry in client.find(prefix=b"/tree/1", maxdepth=2)) == [
        f"/tree/{number}" for number in range(10, 20)
    ]
    assert list(client.find(prefix="/tree/d", maxdepth=2)) == []
    with pytest.raises(ValueError, match="from 1 on"):
        list(client.find(maxdepth=0))

    async def names() -> list[str]:
        found = AsyncClient.beside(client).find(dirs=True, maxdepth=2, prefix="/tree/d")
        return [entry.path async for entry in found]

    assert asyncio.run(names()) == ["/tree/deep"]


def test_a_name_may_be_any_bytes(client: forebay.Client, origin: Path) -> None:
    (origin / "odd").mkdir()
    odd = os.fsencode(origin / "odd") + b"/\xff \n"
    with open(odd, "wb") as file:
        file.write(b"odd")
    [entry] = client.ls("/odd")
    assert os.fsencode(entry.path) == b"/odd/\xff \n"
    assert client.read(entry.path) == client.read(b"/odd/\xff \n") == b"odd"


def test_a_file_reads_as_a_file(client: forebay.Client, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    with client.open("/large") as file:
        assert (file.name, file.readable(), file.seekable(), file.writable()) == ("/large", True, True, False)
        assert file.read(10) == wanted[:10] and file.tell() == 10
        assert file.seek(-5, os.SEEK_END) == len(wanted) - 5
        assert file.read() == wanted[-5:] and file.read(1) == b""
        assert file.pread(100, 4 << 20) == wanted[4 << 20 : (4 << 20) + 100]
        assert file.pread(100, len(wanted) + 5) == b""
        buffer = bytearray(8)
        assert file.readinto(buffer, 3) == 8 and bytes(buffer) == wanted[3:11]
        file.seek(0)
        assert io.BufferedReader(file).read() == wanted
    with pytest.raises(ValueError, match="closed"):
        file.pread(1, 0)
    assert client.read("/large") == wanted
    assert client.read("/large", 5, 7) == wanted[5:12] and client.read("/empty") == b""


def test_errors_are_those_of_files_and_say_what_to_do(client: forebay.Client) -> None:
    with pytest.raises(FileNotFoundError, match="; ") as missing:
        client.stat("/no/such")
    assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, "/no/such")
    with pytest.raises(IsADirectoryError, match="give a file"):
        client.open("/tree")
    with pytest.raises(OSError, match="absolute") as relative:
        client.read("small")
    assert relative.value.errno == errno.EINVAL


def test_settings_that_make_no_sense_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean `client.memory.size`"):
        forebay.Client(workers="node1:1", client_memry_size="1GiB")
    with pytest.raises(ValueError, match="name one of"):
        forebay.Client(workers="node1:1", up="/")
    with pytest.raises(ValueError, match="no workers are named"):
        forebay.Client()
    with pytest.raises(OSError, match="neither a URL nor a directory"):
        forebay.Client(up="/no/such/directory")


def test_a_closed_client_says_so_and_closing_twice_is_once(origin: Path) -> None:
    client = forebay.Client(up=origin, **SMALL)
    client.close()
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.stat("/")


def test_two_clients_of_one_directory_are_two_caches(origin: Path) -> None:
    with forebay.Client(up=origin, **SMALL) as first, forebay.Client(up=str(origin), **SMALL) as second:
        assert first.read("/small") == second.read("/small")


def test_a_replaced_file_is_estale_to_its_handle_and_new_to_its_path(origin: Path) -> None:
    old, new = content(7, 9 << 20), content(8, 2 << 20)
    (origin / "changing").write_bytes(old)
    with forebay.Client(up=origin, client_prefetch_max_part_number=0, **SMALL) as client:
        file = client.open("/changing")
        assert file.pread(10, 0) == old[:10]
        (origin / "next").write_bytes(new)
        os.replace(origin / "next", origin / "changing")
        # Of the old version only what is cached is left, and its last block was never read.
        with pytest.raises(OSError) as stale:
            file.pread(10, (9 << 20) - 10)
        assert stale.value.errno == errno.ESTALE
        assert client.stat("/changing", revalidate=True).size == len(new)
        buffer = bytearray(len(old))
        [count] = client.read_into([("/changing", 0, buffer)])
        assert bytes(buffer[:count]) == new


def test_a_whole_file_is_read_as_it_is_now_and_takes_no_more_memory_than_it_has(origin: Path) -> None:
    old, new = content(7, 9 << 20), content(8, 2 << 20)

    async def read(client: forebay.Client) -> bytes:
        return await AsyncClient.beside(client).read("/changing")

    with forebay.Client(up=origin, client_prefetch_max_part_number=0, **SMALL) as client:
        readers: list[Callable[[], bytes]] = [lambda: client.read("/changing"), lambda: asyncio.run(read(client))]
        for again in readers:
            (origin / "changing").write_bytes(old)
            client.refresh("/changing")
            # The path is known, and of the file the beginning is cached.
            assert client.read("/changing", 0, 10) == old[:10]
            (origin / "next").write_bytes(new)
            os.replace(origin / "next", origin / "changing")
            assert again() == new
        assert client.read("/small", 5, 1 << 60) == b"a cache must never get wrong"
        assert client.read("/small", 1 << 40) == b""
        with pytest.raises(ValueError, match="from 0 on"):
            client.read("/small", -1)


def test_a_thread_that_connects_for_ever_holds_up_no_end() -> None:
    client = forebay.Client._of(Settings.of(None, "127.0.0.1:1", None, None, {}))
    is_connecting, is_over = threading.Event(), threading.Event()

    def connect() -> None:
        with client._connecting:
            is_connecting.set()
            is_over.wait(SOON)

    thread = threading.Thread(target=connect)
    thread.start()
    assert is_connecting.wait(SOON)
    client.end()
    assert thread.is_alive() and not client._is_closed
    is_over.set()
    thread.join()
    client.end()
    assert client._is_closed


def test_a_pickled_client_is_its_settings_and_a_pickled_file_its_version(client: forebay.Client, origin: Path) -> None:
    with client.open("/large") as file:
        file.seek(5)
        again: forebay.File = pickle.loads(pickle.dumps(file))
        assert again.tell() == 5 and again.entry == file.entry
        assert again.read(5) == (origin / "large").read_bytes()[5:10]
    first: forebay.Client = pickle.loads(pickle.dumps(client))
    assert first is pickle.loads(pickle.dumps(client)) and first is not client
    assert first.read("/small") == client.read("/small")
    first.close()
    assert "worker" not in repr(client) and str(origin) in repr(client)
