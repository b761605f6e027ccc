"""`libforebay_streamer.so` and the native module, in the place of Run:ai's library, by both of its interfaces."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forebay
import pytest

from .conftest import SMALL
from .test_cluster import Worker
from .test_cluster import worker as worker

SUCCESS, FINISHED, FILE_ACCESS, END_OF_FILE, INVALID, BUSY, TIMED_OUT = 0, 1, 2, 3, 7, 9, 16
SIZES = ctypes.POINTER(ctypes.c_size_t)
FOUND = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)


class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("number", ctypes.c_int)]


@pytest.fixture(params=["of its own", "of the wheel"])
def library(request: pytest.FixtureRequest) -> str:
    if request.param == "of the wheel":
        return forebay.streamer_library()
    path = os.environ.get("PYTHON_TESTS_STREAMER")
    if not path:
        pytest.skip("libforebay_streamer.so is not built: PYTHON_TESTS_STREAMER does not name it")
    return path


class Streamer:
    """The interface of 0.17."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        for name in ("start", "end", "request", "response", "list_files", "probe_direct_block_size", "set_fs_strategy"):
            setattr(self, f"_{name}", getattr(self.library, f"runai_file_streamer_{name}"))
        self._end: Any
        self._end.restype = None
        self._handle = ctypes.c_void_p()
        assert self._call("start", ctypes.byref(self._handle)) == SUCCESS

    def _call(self, name: str, *arguments: Any) -> int:
        code: int = getattr(self, f"_{name}")(*arguments)
        return code

    def request(self, files: list[tuple[Path | str, list[tuple[int, Any]]]], device: int = 0) -> tuple[int, int]:
        """The code, and the number of the submission. Ranges are offsets and buffers."""
        ranges = [piece for _, pieces in files for piece in pieces]
        number = ctypes.c_uint64(99)
        code = self._call(
            "request",
            self._handle,
            ctypes.byref(number),
            ctypes.c_uint32(len(files)),
            (ctypes.c_char_p * len(files))(*[os.fsencode(path) for path, _ in files]),
            (ctypes.c_uint32 * len(files))(*[len(pieces) for _, pieces in files]),
            (ctypes.c_size_t * len(ranges))(*[offset for offset, _ in ranges]),
            (ctypes.c_size_t * len(ranges))(*[len(buffer) for _, buffer in ranges]),
            (ctypes.c_void_p * len(ranges))(*[ctypes.addressof(buffer) for _, buffer in ranges]),
            Device(device, 0),
        )
        return code, number.value

    def response(self, timeout_ms: int = 30_000) -> tuple[int, int, int, int, bool]:
        """Code, submission, file, range, and whether it was the last."""
        submission, file, index, done = ctypes.c_uint64(), ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_int()
        places = [ctypes.byref(place) for place in (submission, file, index, done)]
        code = self._call("response", self._handle, *places, ctypes.c_uint(timeout_ms))
        return code, submission.value, file.value, index.value, bool(done.value)

    def list(
        self,
        prefix: Path | str,
        recursive: bool = True,
        allow: tuple[str, ...] = (),
        ignore: tuple[str, ...] = (),
        then: Callable[[], object] = bool,
    ) -> Any:
        """The code, and what was told, after each of which ``then`` is called."""
        found: dict[str, int] = {}

        def tell(path: bytes, size: int, _context: None) -> None:
            found[path.decode()] = size
            then()

        def patterns(texts: tuple[str, ...]) -> tuple[Any, ctypes.c_uint]:
            return (ctypes.c_char_p * len(texts))(*[text.encode() for text in texts]), ctypes.c_uint(len(texts))

        arguments = (os.fsencode(prefix), ctypes.c_int(recursive), *patterns(allow), *patterns(ignore), FOUND(tell), None)
        return self._call("list_files", self._handle, *arguments), found

    def end(self) -> None:
        self._end(self._handle)


@pytest.fixture
def start(library: str) -> Iterator[Callable[[], Streamer]]:
    started: list[Streamer] = []

    def one() -> Streamer:
        started.append(Streamer(library))
        return started[-1]

    yield one
    for streamer in started:
        streamer.end()


def buffers(*sizes: int) -> list[Any]:
    return [ctypes.create_string_buffer(size) if size else (ctypes.c_char * 0)() for size in sizes]


@pytest.mark.parametrize("cached", [True, False], ids=["through the cache", "local files"])
def test_ranges_of_files_come_in_any_order_each_answered_once(
    start: Callable[[], Streamer], origin: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    monkeypatch.setenv("FOREBAY_STREAMER_UP", str(origin) if cached else "")
    monkeypatch.setenv("FOREBAY_WORKER_MEMORY_SIZE", "64MiB")
    large, draw = (origin / "large").read_bytes(), random.Random(7)
    offsets = [draw.randrange(len(large) - 300_000) for _ in range(50)]
    parts = buffers(*[draw.randrange(1, 300_000) for _ in offsets])
    whole, none, beyond, missing = buffers(len(large), 0, 100, 5)
    streamer = start()
    code, first = streamer.request(
        [
            (origin / "missing", [(0, missing)]),
            (origin / "large", [*zip(offsets, parts, strict=True), (len(large) - 50, beyond)]),
            (origin / "empty", []),
        ]
    )
    code_of_second, second = streamer.request([(origin / "large", [(0, whole), (5, none)])])
    assert (code, code_of_second) == (SUCCESS, SUCCESS) and 0 < first < second
    answers = [streamer.response() for _ in range(52 + 2)]
    for submission, count in ((first, 52), (second, 2)):
        ended = [answer[4] for answer in answers if answer[1] == submission]
        assert ended == [False] * (count - 1) + [True]
    codes = {answer[1:4]: answer[0] for answer in answers}
    assert len(codes) == 54
    assert codes.pop((first, 0, 0)) == FILE_ACCESS and codes.pop((first, 1, 50)) == END_OF_FILE
    assert set(codes.values()) == {SUCCESS}
    assert streamer.response(0)[0] == FINISHED
    for offset, part in zip(offsets, parts, strict=True):
        assert part.raw == large[offset : offset + len(part)]
    assert whole.raw == large


def test_names_are_listed_as_the_caller_writes_them(
    start: Callable[[], Streamer], origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_STREAMER_UP", str(origin))
    (origin / "tree/model.safetensors").write_bytes(b"m")
    streamer = start()
    code, found = streamer.list(origin / "tree")
    wanted = {str(path): path.stat().st_size for path in (origin / "tree").rglob("*") if path.is_file()}
    assert (code, found) == (SUCCESS, wanted)
    assert str(origin / "tree/deep/end") not in streamer.list(f"{origin}/tree/", recursive=False)[1]
    assert list(streamer.list(origin, allow=("*.safetensors",))[1]) == [str(origin / "tree/model.safetensors")]
    assert str(origin / "small") not in streamer.list(origin, ignore=("*small",))[1]
    assert streamer.list(origin / "nowhere")[0] == FILE_ACCESS


def test_whoever_is_told_of_a_name_may_ask_for_others(
    start: Callable[[], Streamer], origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_STREAMER_UP", str(origin))
    streamer = start()
    codes: list[int] = []
    for recursive in (False, True):
        codes.clear()
        code, found = streamer.list(
            origin / "tree", recursive, then=lambda: codes.append(streamer.list(origin / "tree/deep")[0])
        )
        assert (code, codes) == (SUCCESS, [SUCCESS] * len(found)) and len(found) == 20 + recursive


def test_an_error_that_nobody_can_read_is_answered_all_the_same(start: Callable[[], Streamer], tmp_path: Path) -> None:
    streamer = start()
    [buffer] = buffers(4)
    reader, writer = os.pipe()
    os.close(reader)
    before = os.dup(2)
    os.dup2(writer, 2)
    try:
        streamer.request([(tmp_path / "missing", [(0, buffer)])])
        assert streamer.response()[0] == FILE_ACCESS
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(writer)


def test_what_makes_no_sense_is_refused_and_a_wait_ends(start: Callable[[], Streamer], origin: Path, tmp_path: Path) -> None:
    streamer = start()
    [buffer] = buffers(4)
    assert streamer.request([(origin / "small", [(0, buffer)])], device=1) == (INVALID, 0)
    block = ctypes.c_size_t()
    assert streamer._call("probe_direct_block_size", None, None, 0, ctypes.byref(block)) == SUCCESS
    assert block.value == 4096
    assert streamer._call("set_fs_strategy", streamer._handle, b"sync_buffered,libaio_direct") == SUCCESS
    assert streamer._call("set_fs_strategy", streamer._handle, b"by_magic") == INVALID
    os.mkfifo(tmp_path / "pipe")
    streamer.request([(tmp_path / "pipe", [(0, buffer)])])
    assert streamer.response(20)[0] == TIMED_OUT
    # It is no file: nothing can be read at an offset of it, and it may be closed again before the bytes are in it.
    with contextlib.suppress(BrokenPipeError):
        (tmp_path / "pipe").write_bytes(b"late")
    assert streamer.response()[0] == FILE_ACCESS


def test_a_prefix_leads_to_the_cluster_of_the_machine(
    start: Callable[[], Streamer], worker: Worker, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_CLUSTER_WORKERS", worker.address)
    monkeypatch.setenv("FOREBAY_NETWORK_SHARED_MEMORY", "off")
    monkeypatch.setenv("FOREBAY_STREAMER_MAP", "s3://models/llama=/tree")
    streamer = start()
    code, found = streamer.list("s3://models/llama", recursive=False)
    assert code == SUCCESS and len(found) == 20 and "s3://models/llama/07" in found
    [buffer] = buffers(found["s3://models/llama/07"])
    streamer.request([("s3://models/llama/07", [(0, buffer)])])
    assert streamer.response()[0] == SUCCESS
    assert buffer.raw == (origin / "tree/07").read_bytes()


def test_rules_that_make_no_sense_start_nothing(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_STREAMER_MAP", "s3://models")
    handle = ctypes.c_void_p()
    assert ctypes.CDLL(library).runai_file_streamer_start(ctypes.byref(handle)) == INVALID
    assert handle.value is None


def test_a_streamer_that_ends_lets_go_of_memory(start: Callable[[], Streamer], library: str, origin: Path) -> None:
    for _ in range(20):
        streamer = Streamer(library)
        parts = buffers(*[1 << 20] * 9)
        streamer.request([(origin / "large", [(number << 20, part) for number, part in enumerate(parts)])])
        streamer.end()
        before = [part.raw for part in parts]
        assert [part.raw for part in parts] == before


def test_the_earlier_interface_answers_in_order_one_request_at_a_time(library: str, origin: Path) -> None:
    old = ctypes.CDLL(library)
    old.runai_response_str.restype = ctypes.c_char_p
    handle = ctypes.c_void_p()
    assert old.runai_start(ctypes.byref(handle)) == SUCCESS
    large = (origin / "large").read_bytes()
    sizes = [[1_000_000, 0, 2_000_000], [7, 33 - 7]]
    [memory] = buffers(3_000_033)

    def request(paths: list[Path]) -> int:
        count = len(paths)
        arrays = [(ctypes.c_size_t * len(ranges))(*ranges) for ranges in sizes]
        code: int = old.runai_request(
            handle,
            ctypes.c_uint32(count),
            (ctypes.c_char_p * count)(*[os.fsencode(path) for path in paths]),
            (ctypes.c_size_t * count)(5, 0),
            (ctypes.c_size_t * count)(*[sum(ranges) for ranges in sizes]),
            # One place is enough.
            (ctypes.c_void_p * 1)(ctypes.addressof(memory)),
            (ctypes.c_uint32 * count)(*[len(ranges) for ranges in sizes]),
            (SIZES * count)(*[ctypes.cast(array, SIZES) for array in arrays]),
            *[None] * 5,
        )
        return code

    def response() -> tuple[int, int, int]:
        file, index = ctypes.c_uint32(99), ctypes.c_uint32(99)
        return old.runai_response(handle, ctypes.byref(file), ctypes.byref(index)), file.value, index.value

    assert request([origin / "large", origin / "small"]) == SUCCESS
    assert request([origin / "large", origin / "small"]) == BUSY
    answers = [response() for _ in range(5)]
    assert answers == [(SUCCESS, 0, 0), (SUCCESS, 0, 1), (SUCCESS, 0, 2), (SUCCESS, 1, 0), (SUCCESS, 1, 1)]
    assert response()[0] == FINISHED
    assert memory.raw == large[5:3_000_005] + (origin / "small").read_bytes()[:33]
    assert request([origin / "missing", origin / "small"]) == SUCCESS
    assert response() == (FILE_ACCESS, 0, 0)
    assert b"File access error" in old.runai_response_str(FILE_ACCESS)
    old.runai_end(handle)


#: The tests that Run:ai ships with the Python side of the library. The package itself imports torch, which they do without.
THEIR_TESTS = """
    import sys, types, unittest
    package = types.ModuleType("runai_model_streamer")
    package.__path__ = [sys.argv[1] + "/runai_model_streamer"]
    sys.modules["runai_model_streamer"] = package
    suite = unittest.defaultTestLoader.loadTestsFromName("runai_model_streamer.libstreamer.tests.test_libstreamer")
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(0 if result.wasSuccessful() and result.testsRun else 1)
"""


def present() -> str:
    found = importlib.util.find_spec("runai_model_streamer")
    assert found is not None and found.submodule_search_locations
    return str(Path(found.submodule_search_locations[0]).parent)


@pytest.mark.parametrize("is_earlier", [False, True], ids=["0.17", "0.15"])
def test_the_streamers_own_tests_pass(library: str, is_earlier: bool) -> None:
    place = os.environ["PYTHON_TESTS_EARLIER_STREAMER"] if is_earlier else present()
    variables = os.environ | {"STREAMER_LIBRARY": library}
    command = [sys.executable, "-c", textwrap.dedent(THEIR_TESTS), place]
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_shell_is_told_where_the_library_is() -> None:
    said = subprocess.run([sys.executable, "-m", "forebay.streamer"], capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == (forebay.streamer_library() + "\n", "")
    assert os.path.isabs(forebay.streamer_library())


def test_a_client_and_a_streamer_of_one_module_read_beside_each_other(origin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_STREAMER_UP", str(origin))
    monkeypatch.setenv("FOREBAY_WORKER_MEMORY_SIZE", "64MiB")
    wanted = (origin / "large").read_bytes()
    with forebay.Client(up=origin, **SMALL) as client:
        streamer = Streamer(forebay.streamer_library())
        [whole] = buffers(len(wanted))
        assert streamer.request([(origin / "large", [(0, whole)])])[0] == SUCCESS
        assert client.read("/large") == wanted
        assert streamer.response()[0] == SUCCESS
        assert whole.raw == wanted
        streamer.end()
        assert client.read("/small") == (origin / "small").read_bytes()


#: What a process does that loads models and has never heard of the package.
WITHOUT_THE_PACKAGE = """
    import ctypes, sys
    library = ctypes.CDLL(sys.argv[1])
    handle = ctypes.c_void_p()
    assert library.runai_file_streamer_start(ctypes.byref(handle)) == 0
    library.runai_file_streamer_end(handle)
    assert not [name for name in sys.modules if name.startswith("forebay")]
"""


def test_the_module_is_a_library_to_who_does_not_import_it() -> None:
    command = [sys.executable, "-I", "-c", textwrap.dedent(WITHOUT_THE_PACKAGE), forebay.streamer_library()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
