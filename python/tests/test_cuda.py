"""Reads into memory of a GPU, with a library of fake functions in the place of CUDA's driver: its GPUs have memory of the host. This shows
nothing of a real one."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay
import numpy
import pytest
import safetensors.numpy
from forebay._devices import device_number
from forebay.aio import AsyncClient
from forebay.safetensors import safe_open

from .conftest import SMALL, in_fork
from .test_cluster import Worker, eventually, wait_until_shown

SOURCE = Path(__file__).resolve().parents[2] / "crates/forebay-cuda/tests/fake/cuda.c"
#: As `forebay_cuda::LIBRARY_OF_TESTS`.
VARIABLE = "TESTS_OF_FOREBAY_CUDA_LIBRARY"


class Cuda:
    """The fake library, which is the driver of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.fake_allocate.restype = ctypes.c_uint64
        for name in ("fake_registered", "fake_copied", "fake_copies", "fake_followed"):
            getattr(self._library, name).restype = ctypes.c_size_t

    def allocate(self, length: int, device: int = 0) -> int:
        return int(self._library.fake_allocate(device, ctypes.c_size_t(length)))

    def read_back(self, address: int, length: int) -> bytes:
        into = ctypes.create_string_buffer(length)
        assert self._library.fake_read(ctypes.c_uint64(address), into, ctypes.c_size_t(length)) == 1
        return into.raw

    def fail(self, call: str, code: int) -> None:
        self._library.fake_fail(call.encode(), 0, code)

    def delay(self, times: int) -> None:
        self._library.fake_delay(ctypes.c_size_t(times))

    def capture(self, stream: int | None) -> None:
        self._library.fake_capture(int(stream is not None), ctypes.c_uint64(stream or 0))

    def take_read_only(self, takes: bool) -> None:
        self._library.fake_take_read_only(int(takes))

    def count(self, name: str) -> int:
        return int(getattr(self._library, f"fake_{name}")())


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler, `cc`")
    path = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    subprocess.run([compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread", "-o", path, SOURCE], check=True)
    return path


@pytest.fixture
def cuda(library: Path) -> Iterator[Cuda]:
    """It, as this process's driver. That is loaded once and stays."""
    os.environ[VARIABLE] = str(library)
    fake = Cuda(library)
    fake.fail("", 0)
    fake.delay(3)
    fake.take_read_only(True)
    yield fake
    fake.capture(None)
    fake.fail("", 0)
    fake.delay(0)


def test_a_file_is_read_into_memory_of_a_gpu(cuda: Cuda, client: forebay.Client, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    address = cuda.allocate(len(wanted) + 10)
    followed = cuda.count("followed")
    with client.open("/large") as file:
        assert file.read_into_device(address, 0, len(wanted) + 10) == len(wanted)
        assert cuda.read_back(address, len(wanted)) == wanted
        assert file.read_into_device(address, 100, 50, device="cuda:0", stream=0) == 50
        assert cuda.read_back(address, 50) == wanted[100:150]
        reads: list[tuple[str | forebay.File, int, int, int]]
        reads = [(file, 5, address, 10), ("/small", 0, address + 10, 4), ("/empty", 0, address + 20, 9)]
        assert client.read_into_device(reads, device=0) == [10, 4, 0]
        assert cuda.read_back(address, 14) == wanted[5:15] + b"what"
        assert file.tell() == 0
    assert client.read_into_device([]) == []
    assert cuda.count("followed") == followed + 3


def test_errors_are_oserror_with_the_drivers_name(cuda: Cuda, client: forebay.Client) -> None:
    address, other = cuda.allocate(1000), cuda.allocate(1000, device=1)
    # Of the host, of another GPU, and beyond the end.
    host = numpy.zeros(1000, numpy.uint8)
    for place, device in ((host.ctypes.data, None), (other, 0), (address + 990, 0)):
        with pytest.raises(OSError, match="no memory of") as raised:
            client.read_into_device([("/small", 0, place, 20)], device=device)
        assert raised.value.errno == errno.EFAULT
    with pytest.raises(OSError, match="there is no cuda:9: the driver shows 2") as raised:
        client.read_into_device([("/small", 0, address, 20)], device=9)
    assert raised.value.errno == errno.ENODEV
    for call, code, number, name in (
        ("cuMemcpyHtoDAsync", 1, errno.EINVAL, "CUDA_ERROR_INVALID_VALUE"),
        ("cuEventQuery", 700, errno.EIO, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    ):
        cuda.fail(call, code)
        with pytest.raises(OSError, match=name) as raised:
            client.read_into_device([("/small", 0, address, 20)])
        assert (raised.value.errno, raised.value.filename) == (number, "/small")
        cuda.fail("", 0)
    assert client.read_into_device([("/small", 0, address, 20)]) == [20]
    with pytest.raises(FileNotFoundError):
        client.read_into_device([("/missing", 0, address, 20)])


def test_files_are_read_while_the_program_captures_another_stream(cuda: Cuda, client: forebay.Client) -> None:
    address = cuda.allocate(100)
    cuda.capture(63)
    assert client.read_into_device([("/small", 0, address, 20)]) == [20]
    assert cuda.read_back(address, 20) == b"what a cache must ne"
    for stream, said in ((63, "captured for a graph"), (2, "on each thread")):
        with pytest.raises(OSError, match=said) as raised:
            client.read_into_device([("/small", 0, address, 20)], stream=stream)
        assert raised.value.errno == errno.EINVAL
    cuda.capture(None)
    assert client.read_into_device([("/small", 0, address, 20)]) == [20]


def test_names_of_gpus() -> None:
    known: list[int | str | None] = [None, "cuda", "cuda:0", 7, "3"]
    unknown: list[int | str] = ["cpu", "cuda:", "cuda:x", -1, "", 1 << 32, "cuda:²"]
    assert [device_number(name) for name in known] == [None, None, 0, 7, 3]
    for name in unknown:
        with pytest.raises(ValueError, match="is no GPU of CUDA"):
            device_number(name)


def test_asyncio_has_the_same_and_a_task_that_is_cancelled_copies_no_more(cuda: Cuda, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    address = cuda.allocate(len(wanted))

    async def read() -> None:
        async with AsyncClient(up=origin, **SMALL) as client:
            assert await client.read_into_device([("/large", 0, address, len(wanted))]) == [len(wanted)]
            assert cuda.read_back(address, len(wanted)) == wanted
            file = await client.open("/small")
            assert await file.read_into_device(address, 5, 3, device="cuda:0") == 3
            cuda.delay(100)
            task = asyncio.create_task(client.read_into_device([("/large", 0, address, len(wanted))]))
            await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait([task])
            copied = cuda.count("copied")
            cuda.delay(0)
            await client.read_into_device([("/small", 0, address, 7)])
            assert cuda.count("copied") == copied + 7

    asyncio.run(read())


def test_a_forked_child_reads_into_no_gpu_of_its_parents(cuda: Cuda, client: forebay.Client) -> None:
    address = cuda.allocate(100)
    assert client.read_into_device([("/small", 0, address, 20)]) == [20]
    with client.open("/small") as file:
        file.read_into_device(address, 0, 10)
        # The child has a client of its own, and the fake knows nothing of forks: what matters is that nothing of the parent's is used.
        said = in_fork(lambda: client.read("/small", 0, 4))
        assert said == "b'what'"
        assert file.read_into_device(address, 0, 10) == 10


@pytest.fixture
def near(origin: Path, tmp_path: Path) -> Iterator[Worker]:
    """A worker whose memory can be registered: small pages, in a file that is sealed."""
    program = os.environ.get("PYTHON_TESTS_PROGRAM")
    if not program:
        pytest.skip("the program forebay is not built: PYTHON_TESTS_PROGRAM does not name it")
    worker = Worker(program, origin, tmp_path, worker__memory__huge_pages="false")
    yield worker
    worker.end()


def test_bytes_of_a_worker_on_this_host_are_copied_from_its_memory_which_is_registered_once(
    cuda: Cuda, near: Worker, origin: Path
) -> None:
    wanted = (origin / "large").read_bytes()
    address = cuda.allocate(len(wanted))
    with forebay.Client(**near.settings()) as client:
        wait_until_shown(client, near, origin)
        before = cuda.count("registered")
        for _ in range(3):
            assert client.read_into_device([("/large", 0, address, len(wanted))]) == [len(wanted)]
            assert cuda.read_back(address, len(wanted)) == wanted
        # All of the worker's, and perhaps some buffers for what came before it was shown.
        assert cuda.count("registered") - before >= 64 << 20
        eventually("the leases are given back", lambda: near.pinned_bytes() == 0)
    eventually("nothing stays registered", lambda: cuda.count("registered") <= before)


def test_where_a_gpu_cannot_read_such_memory_bytes_go_through_pinned_buffers(
    cuda: Cuda, near: Worker, origin: Path
) -> None:
    wanted = (origin / "large").read_bytes()
    address = cuda.allocate(len(wanted))
    cuda.take_read_only(False)
    with forebay.Client(**near.settings()) as client:
        wait_until_shown(client, near, origin)
        before = cuda.count("registered")
        assert client.read_into_device([("/large", 0, address, len(wanted))]) == [len(wanted)]
        assert cuda.read_back(address, len(wanted)) == wanted
        assert cuda.count("registered") - before < 64 << 20


#: Enough of a torch of CUDA's. Its tensors on a GPU are memory of the fake.
FAKE_TORCH = """
import numpy
from types import SimpleNamespace
class device:
    def __init__(self, name): self.type = str(name).split(":")[0]
float32 = numpy.float32
version = SimpleNamespace(cuda="12.4")
cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=0))
allocate = None
class Tensor:
    def __init__(self, shape, dtype, of_host):
        self.shape, self.dtype, length = shape, dtype, max(self.nbytes(shape, dtype), 1)
        self.host = numpy.empty(length, numpy.uint8) if of_host else None
        self.address = self.host.ctypes.data if of_host else allocate(length)
    @staticmethod
    def nbytes(shape, dtype): return int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
    def data_ptr(self): return self.address
    def numel(self): return int(numpy.prod(self.shape))
    def element_size(self): return numpy.dtype(self.dtype).itemsize
    def to(self, device): return self
def empty(shape, dtype, device, pin_memory=False):
    assert pin_memory == (device == "cpu")
    return Tensor(shape, dtype, device == "cpu")
__version__ = "0"
"""


def test_tensors_are_read_into_memory_of_the_gpu(
    cuda: Cuda, client: forebay.Client, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays: dict[str, Any] = {
        "large": numpy.random.default_rng(5).random((1300, 1000), numpy.float32),
        "small": numpy.arange(12, dtype=numpy.float32).reshape(3, 4),
        "empty": numpy.empty((0, 5), numpy.float32),
    }
    safetensors.numpy.save_file(arrays, origin / "model.safetensors")
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def bytes_of(tensor: Any) -> bytes:
        length = tensor.nbytes(tensor.shape, tensor.dtype)
        if tensor.host is not None:
            return bytes(tensor.host[:length])
        return cuda.read_back(tensor.address, length) if length else b""

    try:
        with safe_open("/model.safetensors", framework="pt", device="cuda:0", client=client) as model:
            stub: Any = sys.modules["torch"]
            stub.allocate = cuda.allocate
            for name, tensor in model.get_tensors().items():
                assert tuple(tensor.shape) == arrays[name].shape and bytes_of(tensor) == arrays[name].tobytes()
                assert tensor.host is None
            rows, columns = model.get_slice("large")[100:300], model.get_slice("large")[:, 10:500]
            assert rows.host is None and bytes_of(rows) == arrays["large"][100:300].tobytes()
            # Many short runs: they are not a copy each.
            assert columns.host is not None and bytes_of(columns) == arrays["large"][:, 10:500].tobytes()
            assert bytes_of(model.get_slice("small")[:, 1:3]) == arrays["small"][:, 1:3].tobytes()
            assert bytes_of(model.get_slice("small")[5:2]) == b""
    finally:
        sys.modules.pop("torch", None)


def test_without_a_driver_there_is_an_error_and_tensors_go_the_way_they_went(origin: Path, tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import forebay
        from forebay import safetensors
        from types import SimpleNamespace
        with forebay.Client(up={str(origin)!r}, worker_memory_size="64MiB", worker_memory_prewarm=False) as client:
            try:
                client.read_into_device([("/small", 0, 4096, 10)])
            except OSError as error:
                print(error.errno, error)
            print(safetensors._has_cuda(SimpleNamespace(version=SimpleNamespace(cuda="12.4"))))
            print(safetensors._has_cuda(SimpleNamespace()))
    """)
    variables = os.environ | {VARIABLE: "/nowhere/libcuda.so.1"}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables, check=True)
    first, *others = said.stdout.splitlines()
    assert first.startswith(f"{errno.ENODEV} ") and "install NVIDIA's driver" in first and others == ["False", "False"]
