"""fastsafetensors' loader, with stubs of its modules as of 0.3.2 and 0.5.0: it needs torch, which is not installed here, so this shows
nothing of it itself (`tests/programs/torch_fastsafetensors.py` does). Its copier and its loader are driven as theirs drive them."""

from __future__ import annotations

import ctypes
import enum
import json
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forebay
import forebay.fastsafetensors
import numpy
import pytest
import safetensors.numpy
from forebay.safetensors import SafetensorError


class DeviceType(enum.Enum):
    """As theirs."""

    CPU = "cpu"
    CUDA = "cuda"


class Device:
    """As theirs."""

    def __init__(self, text: str) -> None:
        self.type, self.index = DeviceType(text.split(":")[0]), None

    def as_str(self) -> str:
        return self.type.value


class Buffer:
    """Their `gds_device_buffer`, in memory of the host."""

    def __init__(self, length: int) -> None:
        self.memory = ctypes.create_string_buffer(length) if length else (ctypes.c_char * 1)()

    def get_base_address(self) -> int:
        return ctypes.addressof(self.memory)


class Framework:
    """Their `FrameworkOpBase`."""

    def __init__(self) -> None:
        self.freed: list[Buffer] = []

    def get_name(self) -> str:
        return "pytorch"

    def get_process_group(self, pg: Any) -> Any:
        return SimpleNamespace(size=lambda: 1, rank=lambda: 0)

    def get_device(self, device: str, pg: Any) -> Device:
        return Device(device)

    def alloc_tensor_memory(self, length: int, device: Device) -> Buffer:
        return Buffer(length)

    def free_tensor_memory(self, buffer: Buffer, device: Device) -> None:
        self.freed.append(buffer)


class Metadata:
    """Their `SafeTensorsMetadata`."""

    def __init__(self, string: str, header_length: int, size_bytes: int, framework: Framework, src: str = "") -> None:
        self.header_length, self.size_bytes, self.src = header_length, size_bytes, src
        self.tensors = {name: fields for name, fields in json.loads(string).items() if name != "__metadata__"}

    def get_tensors(self, gbuf: Buffer, device: Device, copy_start_offset: int, dtype: Any = "auto", **since: Any) -> dict[str, Any]:
        begin = self.header_length - copy_start_offset
        found: dict[str, Any] = dict(since)
        for name, fields in self.tensors.items():
            start, end = (begin + offset for offset in fields["data_offsets"])
            found[name] = numpy.frombuffer(gbuf.memory.raw[start:end], numpy.float32).reshape(fields["shape"])
        return found


class CopierInterface(ABC):
    """As theirs."""

    @abstractmethod
    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any: ...

    @abstractmethod
    def wait_io(self, gbuf: Any, dtype: Any = "auto", noalign: bool = False) -> Any: ...


_constructors: dict[str, Any] = {}


class BaseSafeTensorsFileLoader:
    """As theirs, for one rank."""

    def __init__(self, pg: Any, device: Device, copier_type: str, framework: str = "pytorch", **kwargs: Any) -> None:
        self.framework = Framework()
        self.device = device
        self.meta: dict[str, tuple[Metadata, int]] = {}
        self.frames: dict[str, Any] = {}
        self.copier_constructor = _constructors[copier_type](device, **kwargs)

    def reset(self) -> None:
        self.frames = {}
        self.meta = {}

    def close(self) -> None:
        self.reset()
        del self.copier_constructor

    def copy_files_to_device(self, **since: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _, (meta, _rank) in sorted(self.meta.items(), key=lambda item: item[0]):
            copier = self.copier_constructor(meta, self.device, self.framework)
            buffer = copier.submit_io(True, 16 << 30)
            found |= copier.wait_io(buffer, dtype="auto", noalign=False, **since)
        return found


class Cuda:
    """A GPU whose memory is the host's."""

    def __init__(self) -> None:
        self.copied: list[int] = []
        self.answer = 0

    def memcpy_h2d_async(self, to: int, source: int, length: int) -> int:
        if self.answer == 0:
            ctypes.memmove(to, source, length)
            self.copied.append(length)
        return self.answer

    def synchronize(self, device: str) -> None:
        assert device == "cuda"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """Their modules, and torch's."""
    gpu = Cuda()

    def module(name: str, **members: Any) -> None:
        made: Any = types.ModuleType(name)
        for member, value in members.items():
            setattr(made, member, value)
        monkeypatch.setitem(sys.modules, name, made)

    def register_copier_constructor(name: str) -> Any:
        return lambda factory: _constructors.setdefault(name, factory)

    class Pinned:
        def __init__(self, size: int) -> None:
            self.memory = ctypes.create_string_buffer(size)

        def data_ptr(self) -> int:
            return ctypes.addressof(self.memory)

    def empty(size: int, *, dtype: str, pin_memory: bool) -> Pinned:
        assert (dtype, pin_memory) == ("uint8", True)
        return Pinned(size)

    module("fastsafetensors")
    module("fastsafetensors.common", SafeTensorsMetadata=Metadata)
    module("fastsafetensors.copier")
    module("fastsafetensors.copier.base", CopierInterface=CopierInterface)
    module("fastsafetensors.copier.nogds", load_library_func=lambda: None)
    module("fastsafetensors.copier.registry", register_copier_constructor=register_copier_constructor)
    module("fastsafetensors.cpp", memcpy_h2d_async=gpu.memcpy_h2d_async)
    module("fastsafetensors.frameworks", get_framework_op=lambda name: Framework())
    module("fastsafetensors.loader", BaseSafeTensorsFileLoader=BaseSafeTensorsFileLoader)
    module("torch", empty=empty, uint8="uint8", cuda=gpu)
    _constructors.clear()
    yield gpu
    _constructors.clear()


@pytest.fixture
def model(origin: Path) -> dict[str, Any]:
    """Two files."""
    draw = numpy.random.default_rng(1)
    tensors = {f"layer.{number}": draw.random((1000, 100 * (number + 1)), numpy.float32) for number in range(4)}
    (origin / "llama").mkdir()
    names = list(tensors)
    for part in range(2):
        of_part = {name: tensors[name] for name in names[part::2]}
        safetensors.numpy.save_file(of_part, origin / f"llama/{part}.safetensors")
    return tensors


FILES = ["/llama/0.safetensors", "/llama/1.safetensors"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_their_loader_gets_all_tensors_through_the_cache(
    cuda: Cuda, client: forebay.Client, model: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forebay.fastsafetensors, "_PINNED", 300_000)
    monkeypatch.setattr(forebay.fastsafetensors, "_READ", 70_000)
    loader = forebay.fastsafetensors.loader(client, device=device)
    loader.add_filenames({0: FILES})
    assert loader.frames.keys() == model.keys()
    found = loader.copy_files_to_device()
    assert found.keys() == model.keys()
    assert all((found[name] == wanted).all() for name, wanted in model.items())
    assert (max(cuda.copied, default=0) == 300_000) == (device == "cuda")
    files = list(loader._files.values())
    loader.close()
    assert len(files) == 2 and all(file.closed for file in files) and not loader._files


@pytest.mark.parametrize("owner", ["an allocation", None], ids=["owned", "borrowed"])
def test_since_0_5_tensors_keep_what_they_lie_in(
    cuda: Cuda, client: forebay.Client, model: dict[str, Any], owner: str | None
) -> None:
    loader = forebay.fastsafetensors.loader(client)
    loader.add_filenames({0: FILES})
    found = loader.copy_files_to_device(owner=owner)
    assert found.pop("owner", None) == owner
    assert found.keys() == model.keys()
    loader.close()


def test_ranks_take_turns(cuda: Cuda, client: forebay.Client, model: dict[str, Any]) -> None:
    loader = forebay.fastsafetensors.loader(client)
    loader.add_filenames({0: FILES, 1: []})
    loader.add_filenames({1: [FILES[0]]})
    assert [(path, rank) for path, (_, rank) in loader.meta.items()] == [(FILES[0], 1), (FILES[1], 0)]
    loader.close()


def test_what_cannot_be_loaded_leaves_no_memory_behind(
    cuda: Cuda, client: forebay.Client, model: dict[str, Any], origin: Path
) -> None:
    loader = forebay.fastsafetensors.loader(client, device="cuda")
    with pytest.raises(FileNotFoundError):
        loader.add_filenames({0: ["/llama/2.safetensors"]})
    with pytest.raises(SafetensorError):
        loader.add_filenames({0: ["/small"]})
    assert not loader.meta and not loader._files
    loader.add_filenames({0: FILES})
    cuda.answer = 2
    with pytest.raises(RuntimeError, match="CUDA answers 2"):
        loader.copy_files_to_device()
    assert len(loader.framework.freed) == 1
    loader.close()
