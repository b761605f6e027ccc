"""``forebay://`` for fsspec: what its own suites do not ask."""

from __future__ import annotations

import array
import asyncio
import errno
import gc
import io
import json
import multiprocessing
import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import SMALL, HungWorker, content, in_fork

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

from forebay import _room  # noqa: E402
from forebay._room import Room  # noqa: E402
from forebay.aio import AsyncFile  # noqa: E402
from forebay.fs import ForebayFileSystem  # noqa: E402


@pytest.fixture
def fs(origin: Path) -> Iterator[Any]:
    """A file system with a worker of the directory in this process."""
    fs = fsspec.filesystem("forebay", up=f"file://{origin}", skip_instance_cache=True, **SMALL)
    yield fs
    fs.client.close()


class Counting:
    """A session that writes down what it is asked."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self._session, name)


def test_the_protocol_is_known_and_urls_are_paths_of_the_namespace(fs: Any, origin: Path) -> None:
    assert isinstance(fs, ForebayFileSystem)
    for path in ["forebay:///tree/00", "forebay://tree/00", "/tree/00", "tree/00", "/tree/00/"]:
        assert fs.info(path)["name"] == "/tree/00"
    assert fs._strip_protocol("forebay://") == fs._strip_protocol("") == "/"
    assert fs.unstrip_protocol("/tree/00") == "forebay:///tree/00"
    with fsspec.open("forebay:///small", up=str(origin), **SMALL) as file:
        assert file.read() == (origin / "small").read_bytes()


def test_info_has_what_users_look_for(fs: Any, origin: Path) -> None:
    info = fs.info("/small")
    assert (info["type"], info["size"]) == ("file", 33)
    assert info["mtime"] == pytest.approx((origin / "small").stat().st_mtime)
    assert fs.modified("/small").timestamp() == pytest.approx(info["mtime"])
    assert fs.info("/tree")["type"] == "directory" and fs.isdir("/tree") and not fs.isfile("/tree")
    for missing in ["/missing", "/small/below", "/tree//00", "/" + "long" * 1000]:
        assert not (fs.exists(missing) or fs.isdir(missing) or fs.isfile(missing))
    assert json.dumps(info)
    assert [entry["name"] for entry in fs.ls("/")] == ["/empty", "/large", "/small", "/tree"]
    assert len(fs.find("/")) == 24 and "/tree/deep" in fs.find("/", withdirs=True)
    assert fs.find("/missing") == [] and fs.find("/small") == ["/small"]
    assert fs.glob("/tree/0[0-2]") == ["/tree/00", "/tree/01", "/tree/02"]
    assert fs.glob("/**/end") == ["/tree/deep/end"]
    assert fs.find("/tree", maxdepth=1) == [f"/tree/{number:02}" for number in range(20)]
    assert fs.find("/", maxdepth=2, withdirs=True) == sorted([*fs.ls("/", detail=False), *fs.ls("/tree", detail=False)])
    assert fs.find("/small", maxdepth=1) == ["/small"] and fs.find("/missing", maxdepth=1, withdirs=True) == []
    assert [names for _, _, names in fs.walk("/tree/deep")] == [["end"]]
    assert fs.du("/tree/deep") == 3


def test_what_cannot_be_listed_is_an_error_and_not_empty(hung_worker: HungWorker) -> None:
    settings = {"client_request_timeout": "1s", "network_shared_memory": "off"}
    fs = fsspec.filesystem("forebay", workers=hung_worker.address, skip_instance_cache=True, **settings)
    asked: list[Callable[[], Any]] = [
        lambda: fs.find("/"),
        lambda: fs.find("/", maxdepth=1),
        lambda: fs.glob("/*"),
        lambda: fs.exists("/file"),
        lambda: fs.isdir("/file"),
        lambda: fs.isfile("/file"),
    ]
    for ask in asked:
        with pytest.raises(OSError):
            ask()
    fs.client.close()


def test_any_number_of_ranges_is_one_native_call(fs: Any, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    fs.info("/")
    fs.client._session = counting = Counting(fs.client._session)
    paths = ["/large", "/missing", "/large", "/tree", "/large"]
    found = fs.cat_ranges(paths, [0, 0, 5, 0, 9], [10, 10, 4 << 20, 10, 9], max_gap=1000)
    assert counting.asked == ["read_each"]
    assert found[0] == wanted[:10] and found[2] == wanted[5 : 4 << 20] and found[4] == b""
    assert isinstance(found[1], FileNotFoundError) and isinstance(found[3], IsADirectoryError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, 0, 10, on_error="raise")
    for max_gap in (None, -1, 0, 1 << 40):
        assert fs.cat_ranges(["/small", "/large"], 1, 3, max_gap=max_gap) == [b"ha", wanted[1:3]]
    with pytest.raises(TypeError):
        fs.cat_ranges("/small", 0, 1)
    with pytest.raises(ValueError):
        fs.cat_ranges(["/small"], [0, 1], [1])


def test_ranges_may_count_from_the_end(fs: Any, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    fs.info("/")
    fs.client._session = counting = Counting(fs.client._session)
    limits = [(None, None), (-5, None), (3, -4), (-10, -2), (len(wanted) - 3, 1 << 40), (1 << 40, None), (7, 3)]
    starts, ends = [start for start, _ in limits], [end for _, end in limits]
    found = fs.cat_ranges(["/large"] * len(limits), starts, ends)
    assert found == [wanted[start:end] for start, end in limits]
    assert counting.asked == ["open_each", "read_each"]
    assert fs.cat_file("/large", -5) == wanted[-5:] and fs.cat_file("/small") == fs.cat("/small")
    assert fs.cat(["/small", "/empty"]) == {"/small": (origin / "small").read_bytes(), "/empty": b""}
    assert fs.head("/large", 3) == wanted[:3] and fs.tail("/large", 3) == wanted[-3:]
    with pytest.raises(FileNotFoundError):
        fs.cat_file("/missing")


def test_a_file_reads_into_memory_of_the_callers_and_keeps_its_version(fs: Any, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    with fs.open("/large") as file:
        memory = array.array("B", bytes(1000))
        file.seek(100)
        assert file.readinto(memory) == 1000 and memory.tobytes() == wanted[100:1100] and file.tell() == 1100
        assert file.read(10) == wanted[1100:1110] and file.cache.name == "none"
        file.seek(-3, os.SEEK_END)
        assert file.readinto(memory) == 3 and file.readinto(memory) == 0 and file.read() == b""
        again = pickle.loads(pickle.dumps(file))
        assert again.tell() == len(wanted) and again.details == file.details
        again.seek(0)
        assert io.BufferedReader(again).read(7) == wanted[:7]
    with pytest.raises(ValueError):
        file.readinto(memory)
    for cache_type in ["readahead", "bytes", "blockcache", "all"]:
        with fs.open("/large", cache_type=cache_type, block_size=1 << 20) as file:
            file.seek(4 << 20)
            assert file.read(100) == wanted[4 << 20 : (4 << 20) + 100]
            buffer = bytearray(50)
            assert file.readinto(buffer) == 50 and buffer == wanted[(4 << 20) + 100 : (4 << 20) + 150]


def test_lines_are_those_of_a_file(fs: Any, origin: Path) -> None:
    lines = [b"%d %s\n" % (number, b"x" * (number * 37 % 3000)) for number in range(300)] + [b"the end"]
    (origin / "lines").write_bytes(b"".join(lines))
    with fs.open("/lines") as file:
        assert file.readline() == lines[0] and file.readline(3) == lines[1][:3]
        assert file.readline() == lines[1][3:] and list(file) == lines[2:]
        assert file.readline() == b""
        file.seek(0)
        assert file.readline(0) == b"" and file.readline(1 << 40) == lines[0] and file.tell() == len(lines[0])
        file.seek(0)
        assert file.readlines() == lines
    (origin / "one line").write_bytes(b"x" * (1 << 20))
    with fs.open("/one line") as file:
        fs.client._session = counting = Counting(fs.client._session)
        # However far the next newline is.
        assert file.readline(10) == b"x" * 10 and counting.asked.count("read_ranges") == 1
    with fs.open("/lines", "r") as text:
        assert text.readlines() == [line.decode() for line in lines]


def test_a_replaced_object_is_another_version(origin: Path) -> None:
    settings = {"client_prefetch_max_part_number": 0, **SMALL}
    fs = fsspec.filesystem("forebay", up=str(origin), skip_instance_cache=True, **settings)
    old, key = (origin / "large").read_bytes(), fs.ukey("/large")
    assert fs.cat_file("/large", 0, 10) == old[:10] and fs.checksum("/large") == fs.checksum("/large")
    file = fs.open("/large")
    new = content(77, 3 << 20)
    (origin / "next").write_bytes(new)
    os.replace(origin / "next", origin / "large")
    # Of the old version the last block was never read.
    file.seek(-10, os.SEEK_END)
    with pytest.raises(OSError) as stale:
        file.read(10)
    assert stale.value.errno == errno.ESTALE
    assert fs.cat_file("/large") == new
    assert fs.info("/large", refresh=True)["size"] == len(new) and fs.ukey("/large") != key
    (origin / "more").write_bytes(b"")
    assert "/more" in fs.ls("/", detail=False, refresh=True)
    os.unlink(origin / "more")
    fs.invalidate_cache()
    assert "/more" not in fs.ls("/", detail=False)
    fs.client.close()


def test_files_of_any_size_are_written_whole(fs: Any, origin: Path) -> None:
    for size in [0, 1, 8 << 20, (8 << 20) + 1, (17 << 20) + 3]:
        wanted = content(size, size)
        fs.pipe_file("/made/piped", wanted)
        with fs.open("/made/written", "wb") as file:
            for at in range(0, size, 3_000_001):
                file.write(memoryview(wanted)[at : at + 3_000_001])
        with fs.open("/made/at once", "wb") as file:
            assert file.write(wanted) == size
        for name in ["piped", "written", "at once"]:
            assert (origin / "made" / name).read_bytes() == wanted == fs.cat_file(f"/made/{name}"), (name, size)


def test_files_are_new_or_added_to_if_that_is_asked_for(fs: Any, origin: Path) -> None:
    with fs.open("/new", "xb") as file:
        file.write(b"one")
    with pytest.raises(FileExistsError):
        fs.open("/new", "xb")
    with pytest.raises(FileExistsError):
        fs.pipe_file("/new", b"two", mode="create")
    with fs.open("/new", "ab") as file:
        assert file.tell() == 3
        file.write(b", two")
    with fs.open("/other", "ab") as file:
        file.write(b"begun")
    assert (origin / "new").read_bytes() == b"one, two" and (origin / "other").read_bytes() == b"begun"
    with pytest.raises(NotImplementedError):
        fs.open("/new", "r+b")
    with fs.open("/text", "w") as text:
        text.write("ä line\n")
    assert fs.read_text("/text") == "ä line\n"
    fs.touch("/text")
    assert fs.size("/text") == 0


def test_a_transaction_is_seen_at_its_end_or_never(fs: Any, origin: Path, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(content(5, 9 << 20))

    def write_all() -> None:
        with fs.open("/t/opened", "wb") as file:
            file.write(b"opened")
        fs.pipe_file("/t/piped", b"piped")
        fs.put_file(str(tmp_path / "local"), "/t/put")
        assert not (origin / "t").exists()

    with pytest.raises(RuntimeError), fs.transaction:
        write_all()
        raise RuntimeError
    assert not (origin / "t").exists()
    with fs.transaction:
        write_all()
    assert sorted(path.name for path in (origin / "t").iterdir()) == ["opened", "piped", "put"]
    assert fs.cat_file("/t/put") == content(5, 9 << 20)
    fs.pipe_file("/t/after", b"no transaction")
    assert (origin / "t" / "after").exists()


@pytest.mark.parametrize("mode", ["wb", "ab", "w"])
def test_a_file_whose_block_an_exception_ends_never_was(fs: Any, origin: Path, mode: str) -> None:
    before = (origin / "large").read_bytes()
    half = content(3, 9 << 20) if "b" in mode else "half"
    with pytest.raises(RuntimeError), fs.open("/large", mode) as file:
        file.write(half)
        raise RuntimeError
    with fs.transaction:
        with pytest.raises(RuntimeError), fs.open("/t/half", mode) as file:
            file.write(half)
            raise RuntimeError
        fs.pipe_file("/t/whole", b"whole")
    assert (origin / "large").read_bytes() == before
    assert (origin / "t" / "whole").exists() and not (origin / "t" / "half").exists()


def test_a_file_that_cannot_be_added_to_stays_as_it_was(fs: Any, origin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay._client.File.pread", refuse)
    with pytest.raises(PermissionError):
        fs.open("/small", "ab")
    gc.collect()
    assert (origin / "small").stat().st_size == 33


def test_names_are_removed_copied_and_moved(fs: Any, origin: Path, tmp_path: Path) -> None:
    fs.copy("/small", "/b/small")
    fs.mv("/b/small", "/c/small")
    assert not fs.exists("/b/small") and fs.cat_file("/c/small") == (origin / "small").read_bytes()
    fs.copy("/tree", "/copied", recursive=True)
    assert (origin / "copied/deep/end").read_bytes() == b"end"
    with pytest.raises(IsADirectoryError):
        fs.rm("/tree")
    with pytest.raises(FileNotFoundError):
        fs.rm("/missing")
    fs.rm("/tree", recursive=True)
    assert not (origin / "tree").exists()
    fs.makedirs("/d/e/f")
    with pytest.raises(FileExistsError):
        fs.makedirs("/d/e/f")
    fs.makedirs("/d/e/f", exist_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.mkdir("/no/such", create_parents=False)
    with pytest.raises(OSError) as not_empty:
        fs.rmdir("/d/e")
    assert not_empty.value.errno == errno.ENOTEMPTY
    fs.rmdir("/d/e/f")
    fs.get("/large", str(tmp_path / "here"))
    assert (tmp_path / "here").read_bytes() == (origin / "large").read_bytes()
    with pytest.raises(FileNotFoundError):
        fs.get_file("/missing", str(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "a directory").mkdir()
    with pytest.raises(IsADirectoryError):
        fs.get_file("/large", str(tmp_path / "a directory"))


def test_a_local_file_that_cannot_be_written_to_stays(fs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(b"kept")
    # As for a user who may read it only; who runs the tests may be root.
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(PermissionError):
        fs.get_file("/large", str(kept))
    monkeypatch.undo()
    assert kept.read_bytes() == b"kept"


def refuse(*_: object, **__: object) -> None:
    raise PermissionError


def replace(origin: Path, name: str, data: bytes) -> None:
    """Put another object in its place, as somebody else would."""
    (origin / "next").write_bytes(data)
    os.replace(origin / "next", origin / name)


def test_what_was_replaced_since_is_what_is_brought_and_added_to(origin: Path, tmp_path: Path) -> None:
    settings = {"client_prefetch_max_part_number": 0, **SMALL}
    fs = fsspec.filesystem("forebay", up=str(origin), skip_instance_cache=True, **settings)
    new = content(9, 3 << 20)
    # Believed, and of the old version only the beginning is cached.
    fs.cat_file("/large", 0, 10)
    replace(origin, "large", new)
    fs.get_file("/large", str(tmp_path / "here"))
    assert (tmp_path / "here").read_bytes() == new
    fs.pipe_file("/log", b"old")
    assert fs.cat_file("/log") == b"old"
    replace(origin, "log", b"new, and longer")
    with fs.open("/log", "ab") as file:
        file.write(b", added")
    assert (origin / "log").read_bytes() == b"new, and longer, added"
    fs.client.close()


@pytest.mark.parametrize("maxdepth", [None, 2])
def test_a_walk_lists_only_what_may_have_the_prefix(fs: Any, origin: Path, maxdepth: int | None) -> None:
    (origin / "other").mkdir()
    (origin / "other" / "00").write_bytes(b"")
    assert fs.find("/", maxdepth=maxdepth, prefix="tree/1") == [f"/tree/{number}" for number in range(10, 20)]
    assert fs.find("/tree", maxdepth=maxdepth, prefix="de", withdirs=True)[:1] == ["/tree/deep"]
    assert fs.find("/", maxdepth=maxdepth, prefix="nothing") == []
    # A directory that is not on the way could not be listed.
    listed: list[str] = []
    ls = fs._ls

    async def noted(path: str, **kwargs: Any) -> Any:
        listed.append(path)
        return await ls(path, **kwargs)

    fs._ls = noted
    fs.find("/", maxdepth=2, prefix="tree/1")
    assert listed == ["/", "/tree"]


def test_a_batch_of_files_is_brought_in_bounded_memory(
    fs: Any, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for number in range(12):
        names.append(f"/batch/{number}")
        (origin / "batch").mkdir(exist_ok=True)
        (origin / "batch" / str(number)).write_bytes(content(number, 3000 if number else 0))
    monkeypatch.setattr("forebay._local._PIECE", 1000)
    monkeypatch.setattr("forebay._local._BRINGING", 2500)
    at_once: list[int] = []
    readinto = AsyncFile.readinto

    async def counted(file: AsyncFile, buffer: Any, offset: int) -> int:
        [room] = [room for loop, room in _room._rooms.items() if loop is asyncio.get_running_loop()]
        at_once.append(room._size - room._free)
        # Others have their turn.
        await asyncio.sleep(0)
        return await readinto(file, buffer, offset)

    monkeypatch.setattr(AsyncFile, "readinto", counted)
    # fsspec's loop has one of the right size already, if another test brought a file.
    monkeypatch.setattr(_room, "_rooms", weakref.WeakKeyDictionary())
    fs.get(names, [str(tmp_path / f"brought{number}") for number in range(12)])
    for number, name in enumerate(names):
        assert (tmp_path / f"brought{number}").read_bytes() == (origin / name[1:]).read_bytes()
    assert 1000 < max(at_once) <= 2500


def test_room_goes_to_who_came_first_and_comes_back_from_who_gave_up() -> None:
    async def use() -> None:
        room, order = Room(10), list[str]()

        async def take(name: str, wanted: int) -> None:
            async with room.taken(wanted):
                order.append(name)
                await asyncio.sleep(0)

        async with room.taken(6):
            tasks = {name: asyncio.create_task(take(name, wanted)) for name, wanted in [("a", 5), ("b", 3), ("c", 99)]}
            await asyncio.sleep(0)
            assert order == [], "the second would fit, and is not before the first"
            tasks["a"].cancel()
            await asyncio.wait([tasks["a"]])
            await asyncio.wait([tasks["b"]])
            assert order == ["b"]
        await tasks["c"]
        assert order == ["b", "c"] and room._free == 10 and not room._waiting
        # Given and cancelled in one moment, in either order.
        for cancel_first in (True, False):
            held = room.taken(10)
            await held.__aenter__()
            late = asyncio.create_task(take("late", 10))
            await asyncio.sleep(0)
            if cancel_first:
                late.cancel()
            await held.__aexit__(None, None, None)
            late.cancel()
            await asyncio.wait([late])
            assert room._free == 10 and not room._waiting

    asyncio.run(use())


def test_file_systems_with_the_same_arguments_share_one_client(fs: Any, origin: Path) -> None:
    again = fsspec.filesystem("forebay", up=f"file://{origin}", **SMALL)
    assert again.client is fs.client
    other = ForebayFileSystem(up=f"file://{origin}", client_request_timeout="7s", **SMALL)
    assert other.client is not fs.client
    assert pickle.loads(pickle.dumps(again)).client is fs.client
    assert ForebayFileSystem.from_json(again.to_json()).client is fs.client
    # As `datasets` leaves the options of its caller.
    assert ForebayFileSystem(up=f"file://{origin}", hf={"endpoint": "http://127.0.0.1:1", "token": None}, **SMALL).client is fs.client


def sum_of(fs: Any, path: str) -> int:
    """Run in other processes, by fsspec's loop and without it."""
    assert fs.isfile(path) and fs.find(path) == [path]
    with fs.open(path) as file:
        assert file.read(10) == fs.cat_file(path, 0, 10)
    return int(sum(fs.cat_file(path)))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes_read_with_a_pickled_file_system(fs: Any, origin: Path, method: str) -> None:
    paths = [f"/tree/{number:02}" for number in range(20)]
    wanted = [sum((origin / path[1:]).read_bytes()) for path in paths]
    assert [sum_of(fs, path) for path in paths] == wanted
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.starmap(sum_of, [(fs, path) for path in paths]) == wanted
        pool.close()
        pool.join()


def test_a_forked_child_uses_the_file_system_that_it_came_with(fs: Any, origin: Path) -> None:
    file = fs.open("/large")
    wanted = (origin / "large").read_bytes()
    assert sum_of(fs, "/small") > 0 and file.read(10) == wanted[:10]
    assert in_fork(lambda: sum_of(fs, "/small") > 0) == "True"
    assert in_fork(lambda: file.read(10) == wanted[10:20]) == "True"
    assert file.read(10) == wanted[10:20] and sum_of(fs, "/small") > 0


def test_it_is_awaited_in_an_event_loop(origin: Path) -> None:
    async def use() -> None:
        fs = ForebayFileSystem(up=str(origin), asynchronous=True, **SMALL)
        assert await fs._cat_file("/small", 0, 4) == b"what"
        assert [type(found) for found in await fs._cat_ranges(["/small", "/no"], 0, 4)] == [bytes, FileNotFoundError]
        assert len(await fs._find("/tree")) == 21 and await fs._exists("/tree") and not await fs._exists("/no")
        async with await fs.open_async("/large") as file:
            wanted = (origin / "large").read_bytes()
            assert await file.read(10) == wanted[:10] and await file.read() == wanted[10:]
        async with await fs.open_async("/made", "wb") as file:
            await file.write(wanted)
            assert not (origin / "made").exists()
        assert (origin / "made").read_bytes() == wanted
        with pytest.raises(RuntimeError):
            async with await fs.open_async("/given up", "wb") as file:
                await file.write(wanted)
                raise RuntimeError
        assert not (origin / "given up").exists()
        with pytest.raises(FileExistsError):
            await fs.open_async("/made", "xb")
        await fs._rm("/made")
        fs.client.close()

    asyncio.run(use())
