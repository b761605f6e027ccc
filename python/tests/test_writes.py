"""What clients change."""

from __future__ import annotations

import array
import asyncio
import errno
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forebay
import pytest
from forebay.aio import AsyncClient

from .conftest import SMALL, content, in_fork

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

#: More than two parts.
LARGE = (18 << 20) + 5


def test_what_is_written_is_at_the_origin_and_is_read_next(client: forebay.Client, origin: Path) -> None:
    assert client.read("/small")[:4] == b"what"
    made = client.write("/small", b"another")
    assert (made.path, made.size, made.is_file) == ("/small", 7, True)
    assert (origin / "small").read_bytes() == client.read("/small") == b"another"
    assert client.stat("/small") == made
    numbers = array.array("d", range(1000))
    kinds: list[ReadableBuffer] = [bytearray(b"bytes"), memoryview(b"like"), numbers]
    for data in kinds:
        client.write("/new/file", data)
        assert client.read("/new/file") == bytes(data)
    with pytest.raises(TypeError):
        client.write("/small", memoryview(bytearray(10))[::2])
    words: Any = "text"
    with pytest.raises(TypeError):
        client.write("/small", words)


def test_an_upload_is_seen_when_it_is_finished_and_not_before(client: forebay.Client, origin: Path) -> None:
    wanted = content(1, LARGE)
    with client.create("/upload") as upload:
        for at in range(0, LARGE, 1_000_003):
            piece = bytearray(wanted[at : at + 1_000_003])
            upload.write(piece)
            # It was taken as it was.
            piece[:] = bytes(len(piece))
        assert not (origin / "upload").exists()
    assert (origin / "upload").read_bytes() == wanted
    with pytest.raises(ValueError, match="create it again"):
        upload.write(b"more")
    with pytest.raises(RuntimeError), client.create("/given up") as upload:
        upload.write(wanted)
        raise RuntimeError
    assert not (origin / "given up").exists()
    upload.abort()


def test_an_upload_is_none_in_a_forked_child(client: forebay.Client, origin: Path) -> None:
    with client.create("/upload") as upload:
        upload.write(content(2, LARGE))
        assert in_fork(lambda: upload.write(b"")).startswith("OSError: [Errno 116]")
        assert in_fork(lambda: client.write("/of a child", b"it").size) == "2"
    assert client.stat("/upload").size == LARGE and client.read("/of a child") == b"it"


def test_errors_are_those_of_files(client: forebay.Client, origin: Path) -> None:
    client.write("/x", b"", exclusive=True)
    with pytest.raises(FileExistsError) as exists:
        client.write("/x", b"", exclusive=True)
    assert exists.value.filename == "/x"
    with pytest.raises(IsADirectoryError):
        client.write("/tree", b"")
    with pytest.raises(IsADirectoryError):
        client.remove("/tree")
    with pytest.raises(FileNotFoundError):
        client.remove("/missing")
    with pytest.raises(FileNotFoundError):
        client.copy("/missing", "/y")
    with pytest.raises(OSError) as not_empty:
        client.rmdir("/tree")
    assert not_empty.value.errno == errno.ENOTEMPTY
    with forebay.Client(up=origin, write_mode="none", **SMALL) as reader, pytest.raises(OSError, match="write.mode") as refused:
        reader.write("/x", b"")
    assert refused.value.errno == errno.EROFS


def test_reads_of_which_some_fail(client: forebay.Client) -> None:
    small, missing, directory = client.read_each([("/small", 0, 4), ("/missing", 0, 4), ("/tree", 0, 4)])
    assert small == b"what"
    assert isinstance(missing, FileNotFoundError) and missing.filename == "/missing"
    assert isinstance(directory, IsADirectoryError)


def test_many_threads_write_at_once(client: forebay.Client, origin: Path) -> None:
    wanted = {f"/many/{number}": content(number, 9 << 20) for number in range(6)}
    threads = [threading.Thread(target=client.write, args=written) for written in wanted.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for path, data in wanted.items():
        assert (origin / path[1:]).read_bytes() == data


def test_the_same_for_asyncio_beside_a_client(client: forebay.Client, origin: Path) -> None:
    async def use() -> None:
        beside = AsyncClient.beside(client)
        wanted = content(3, LARGE)
        assert (await beside.write("/a", b"first")).size == 5
        async with await beside.create("/b") as upload:
            for at in range(0, LARGE, 5_000_000):
                await upload.write(wanted[at : at + 5_000_000])
        assert client.read("/b") == wanted == (origin / "b").read_bytes()
        with pytest.raises(RuntimeError):
            async with await beside.create("/c") as upload:
                raise RuntimeError
        assert (await beside.copy("/a", "/d/e")).path == "/d/e"
        assert (await beside.mkdir("/f")).is_dir
        await beside.rmdir("/f")
        await beside.remove("/a")
        await beside.refresh(below=True)
        with pytest.raises(FileExistsError):
            await beside.create("/b", exclusive=True)
        [found, missing] = await beside.read_each([("/d/e", 0, 10), ("/a", 0, 1)])
        assert found == b"first" and isinstance(missing, FileNotFoundError)
        await beside.close()

    asyncio.run(use())
    with pytest.raises(ValueError, match="closed"):
        client.stat("/")
