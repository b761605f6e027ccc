"""`forebay.safetensors`, against files that safetensors itself wrote, and what its own tests demand of them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import numpy
import pytest
import safetensors
import safetensors.numpy
from forebay.safetensors import SafetensorError, load_file, safe_open

#: Their types leave it open.
theirs_open: Any = safetensors.safe_open
TENSORS: dict[str, Any] = {
    "fp32_2d": numpy.arange(12, dtype=numpy.float32).reshape(3, 4),
    "fp16_3d": numpy.arange(24, dtype=numpy.float16).reshape(2, 3, 4),
    "scalar": numpy.array(7.5, numpy.float64),
    "empty_2d": numpy.empty((0, 5), numpy.float16),
    "i64_1d": numpy.arange(5, dtype=numpy.int64),
    "bool": numpy.array([True, False]),
    "u8": numpy.arange(6, dtype=numpy.uint8).reshape(1, 2, 3),
    "c64": numpy.array([1 + 2j], numpy.complex64),
    # Of more than one block.
    "large": numpy.random.default_rng(5).random((1300, 1000)),
}


@pytest.fixture
def model(origin: Path) -> str:
    safetensors.numpy.save_file(TENSORS, origin / "model.safetensors", metadata={"foo": "bar"})
    return "/model.safetensors"


def same(found: Any, wanted: Any) -> bool:
    return bool(found.dtype == wanted.dtype and found.shape == wanted.shape and (found == wanted).all())


def test_tensors_are_what_was_saved_and_are_ones_own(client: forebay.Client, model: str, origin: Path) -> None:
    with (
        safe_open(model, framework="np", client=client) as opened,
        theirs_open(origin / "model.safetensors", framework="np") as theirs,
    ):
        assert opened.keys() == list(theirs.keys())
        assert opened.offset_keys() == list(theirs.offset_keys())
        assert opened.metadata() == theirs.metadata() == {"foo": "bar"}
        for name, wanted in TENSORS.items():
            assert same(opened.get_tensor(name), wanted), name
        array = opened.get_tensor("i64_1d")
        array[:] = 0
        assert same(opened.get_tensor("i64_1d"), TENSORS["i64_1d"])
        some = opened.get_tensors(["bool", "scalar"])
    assert list(some) == ["bool", "scalar"] and same(some["scalar"], TENSORS["scalar"])
    loaded = load_file(model, client=client)
    assert loaded.keys() == TENSORS.keys()
    assert all(same(loaded[name], wanted) for name, wanted in TENSORS.items())


INDICES: list[Callable[[Any], Any]] = [
    lambda tensor: tensor[:],
    lambda tensor: tensor[...],
    lambda tensor: tensor[1:2],
    lambda tensor: tensor[:, 1:3],
    lambda tensor: tensor[..., -1],
    lambda tensor: tensor[0],
    lambda tensor: tensor[-1, ..., 1:],
    lambda tensor: tensor[2:1],
    lambda tensor: tensor[-2:, ..., :-1],
    lambda tensor: tensor[numpy.int64(1)],
    # Of the large one, rows lie further apart than a page, and columns closer together.
    lambda tensor: tensor[::2],
    lambda tensor: tensor[:, ::3],
    lambda tensor: tensor[1::2, 1:3:2],
    lambda tensor: tensor[::2, ..., 0],
    lambda tensor: tensor[2:1:2],
]


@pytest.mark.parametrize("name", ["fp32_2d", "fp16_3d", "large"])
@pytest.mark.parametrize("index", range(len(INDICES)))
def test_slices_are_those_of_numpy(client: forebay.Client, model: str, name: str, index: int) -> None:
    with safe_open(model, framework="numpy", client=client, backend="pread") as opened:
        part = opened.get_slice(name)
        assert part.get_shape() == list(TENSORS[name].shape)
        assert part.get_dtype() == {"fp32_2d": "F32", "fp16_3d": "F16", "large": "F64"}[name]
        assert same(INDICES[index](part), INDICES[index](TENSORS[name]))


def test_an_element_and_a_scalar_are_slices_too(client: forebay.Client, model: str) -> None:
    with safe_open(model, framework="np", client=client) as opened:
        assert opened.get_slice("large")[1299, 999] == TENSORS["large"][1299, 999]
        assert opened.get_slice("scalar")[...] == 7.5
        assert opened.get_slice("empty_2d")[:, 1:].shape == (0, 4)
        assert opened.get_slice("empty_2d")[::2, ::2].shape == (0, 3)
        assert opened.get_slice("large")[[]].shape == (0, 1000)
        # It is no part of what was read with it.
        assert opened.get_slice("large")[:, ::3].flags.owndata


def test_what_is_not_there_or_makes_no_sense_is_an_error(client: forebay.Client, model: str) -> None:
    with safe_open(model, framework="np", client=client) as opened:
        with pytest.raises(SafetensorError, match="File does not contain tensor nothing"):
            opened.get_tensor("nothing")
        part = opened.get_slice("fp32_2d")
        wrong: list[tuple[Any, str]] = [
            ((slice(None),) * 3, r"slicing \[:, :, :\] with shape \[3, 4\]: more slicing indexes than dimensions"),
            (3, r"\[3\] with shape \[3, 4\]: index 3 out of bounds for tensor dimension #0 of size 3"),
            ((..., slice(1, 9)), r"\[:, 1:9\] with shape \[3, 4\]: index 8 out of bounds for tensor dimension #1 of size 4"),
            ((0, -5), "Invalid index -5 for dimension 1 of size 4"),
            (slice(None, None, -2), "step must be a positive integer, got -2"),
            ((..., ...), "Only one ellipsis"),
            ([0, 1], "Non empty lists"),
            (1.5, "Unsupported slice index"),
        ]
        for index, words in wrong:
            with pytest.raises(SafetensorError, match=words):
                part[index]
    for ask in (opened.keys, opened.offset_keys, opened.metadata, opened.get_tensors, lambda: opened.get_tensor("scalar")):
        with pytest.raises(SafetensorError, match="File is closed"):
            ask()
    for arguments in ({"framework": "jax"}, {"framework": "np", "device": "cuda:0"}, {"framework": "np", "backend": "magic"}):
        with pytest.raises(SafetensorError, match="invalid"):
            safe_open(model, client=client, **arguments)
    with pytest.raises(FileNotFoundError):
        safe_open("/missing.safetensors", framework="np", client=client)


def written(header: object, size: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "short": b"\1\2\3",
    "no header": struct.pack("<Q", 1 << 40),
    "longest": struct.pack("<Q", (1 << 64) - 1) + b"{}",
    "no JSON": written(b"{", 0),
    "no text": written(b"\xff\xfe", 0),
    "a list": written([], 0),
    "deep": written(b"[" * 100_000, 0),
    "twice": written(b'{"a":%s,"a":%s}' % ((b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}',) * 2), 0),
    "metadata": written({"__metadata__": {"a": 1}}, 0),
    "truncated": written({"a": F32}, 7),
    "more": written({"a": F32}, 9),
    "a hole": written({"a": F32 | {"data_offsets": [4, 12]}}, 12),
    "overlap": written({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, 12),
    "negative": written({"a": F32 | {"data_offsets": [-8, 0]}}, 8),
    "negative shape": written({"a": F32 | {"shape": [-1, -2]}}, 8),
    "huge": written({"a": F32 | {"shape": [1 << 62, 1 << 62], "data_offsets": [0, 1 << 62]}}, 8),
    "wrong size": written({"a": F32 | {"shape": [3]}}, 8),
    "a float": written({"a": F32 | {"shape": [2.0]}}, 8),
    "a bool": written({"a": F32 | {"shape": [True, 2]}}, 8),
    "no fields": written({"a": {}}, 0),
    "a type that is none": written({"a": F32 | {"dtype": 7}}, 8),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_lies_is_refused_as_safetensors_does(client: forebay.Client, origin: Path, kind: str) -> None:
    (origin / "bad.safetensors").write_bytes(HOSTILE[kind])
    with pytest.raises(SafetensorError):
        safe_open("/bad.safetensors", framework="np", client=client)
    if kind == "twice":
        return  # The last one counts there.
    with pytest.raises(Exception):  # noqa: B017
        theirs_open(origin / "bad.safetensors", framework="np")


def test_a_type_that_is_not_known_spoils_no_other_tensor(client: forebay.Client, origin: Path) -> None:
    odd = {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}
    header = {"a": odd, "b": {"dtype": "U8", "shape": [1], "data_offsets": [3, 4]}}
    (origin / "new.safetensors").write_bytes(written(header, 4))
    with safe_open("/new.safetensors", framework="np", client=client) as opened:
        assert opened.get_tensor("b").tolist() == [0]
        with pytest.raises(SafetensorError, match="not known here"):
            opened.get_tensor("a")


def test_types_of_half_a_byte_are_whole_tensors_of_torch(client: forebay.Client, origin: Path) -> None:
    header = {"a": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}, "b": {"dtype": "F4", "shape": [2], "data_offsets": [4, 5]}}
    (origin / "half.safetensors").write_bytes(written(header, 5))
    with safe_open("/half.safetensors", framework="np", client=client) as opened:
        with pytest.raises(SafetensorError, match="NumPy has no type F4"):
            opened.get_tensor("a")
        part = opened.get_slice("a")
        assert (part.get_shape(), part.get_dtype()) == ([2, 4], "F4")
        with pytest.raises(SafetensorError, match="read all of it"):
            part[:1]
    bad = {"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}
    (origin / "bad.safetensors").write_bytes(written(bad, 2))
    with pytest.raises(SafetensorError, match="not as many bytes"):
        safe_open("/bad.safetensors", framework="np", client=client)


def test_bfloat16_needs_ml_dtypes_and_says_so(client: forebay.Client, origin: Path) -> None:
    header = {"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    (origin / "bf16.safetensors").write_bytes(written(header, 4))
    with safe_open("/bf16.safetensors", framework="np", client=client) as opened:
        try:
            import ml_dtypes  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            with pytest.raises(SafetensorError, match="install ml_dtypes"):
                opened.get_tensor("a")
        else:
            assert opened.get_tensor("a").dtype == ml_dtypes.bfloat16


def test_tensors_are_fetched_ahead_and_what_is_read_makes_room(client: forebay.Client, model: str) -> None:
    with safe_open(model, framework="np", client=client) as opened:
        prefetch = opened.prefetch(ahead=1 << 20)
        assert prefetch.wait(30)
        for name in opened.offset_keys():
            assert same(opened.get_tensor(name), TENSORS[name])
        assert prefetch.wait(30)


def test_errors_of_slices_are_those_of_safetensors(client: forebay.Client, model: str, origin: Path) -> None:
    with (
        safe_open(model, framework="np", client=client) as opened,
        theirs_open(origin / "model.safetensors", framework="np") as theirs,
    ):
        ours, real = opened.get_slice("fp32_2d"), theirs.get_slice("fp32_2d")
        indices: list[Any] = [3, -4, (0, 4), (0, -5), slice(9), (slice(2, None), 7), (slice(None), slice(1, 9, 3)), [1], slice(0, 2, -1)]
        for index in indices:
            with pytest.raises(SafetensorError) as said:
                ours[index]
            with pytest.raises(safetensors.SafetensorError) as meant:
                real[index]
            assert str(said.value) == str(meant.value)


def test_torch_has_tensors_of_its_own(client: forebay.Client, model: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with safe_open(model, framework="pt", client=client) as opened:
        for name in ("fp32_2d", "fp16_3d", "scalar", "bool", "empty_2d"):
            tensor = opened.get_tensor(name)
            assert tensor.device.type == "cpu" and same(tensor.numpy(), TENSORS[name])
        assert torch.equal(opened.get_slice("fp32_2d")[:, 1:3], torch.from_numpy(TENSORS["fp32_2d"][:, 1:3]))


#: Enough of torch for what reads into its tensors.
FAKE_TORCH = """
import numpy
class device:
    def __init__(self, name): self.type = str(name).split(":")[0]
float32 = numpy.float32
pinned = []
class Tensor:
    def __init__(self, array): self.array, self.moved = array, None
    def data_ptr(self): return self.array.ctypes.data
    def numel(self): return self.array.size
    def element_size(self): return self.array.itemsize
    def to(self, device): self.moved = device.type; return self
def empty(shape, dtype, device, pin_memory):
    assert device == "cpu"
    pinned.append(pin_memory)
    return Tensor(numpy.empty(shape, dtype))
__version__ = "0"
"""


def test_tensors_of_torch_are_read_into_its_memory_pinned_on_the_way_to_a_gpu(
    client: forebay.Client, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    try:
        for device, moved in (("cpu", None), ("cuda:1", "cuda"), (0, "cuda")):
            with safe_open(model, framework="pt", device=device, client=client) as opened:
                tensor = opened.get_tensor("fp32_2d")
                assert same(tensor.array, TENSORS["fp32_2d"]) and tensor.moved == moved
                with pytest.raises(SafetensorError, match="torch 0 has no type F64"):
                    opened.get_tensor("large")
        assert sys.modules["torch"].pinned == [False, True, True]
    finally:
        sys.modules.pop("torch", None)


def test_importing_it_imports_neither_numpy_nor_torch() -> None:
    program = "import sys, forebay.safetensors, forebay.torch, forebay.vllm; print({'numpy', 'torch', 'vllm'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "set()\n"
