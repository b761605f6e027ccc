"""Tensors of ``.safetensors`` files, read through the cache into arrays of NumPy or tensors of torch.

>>> import forebay
>>> from forebay.safetensors import safe_open
>>> with forebay.Client(up="s3://my-bucket/models") as client:
...     with safe_open("/llama/model.safetensors", framework="pt", client=client) as model:
...         model.prefetch()
...         weights = {name: model.get_tensor(name) for name in model.keys()}

The interface is that of the package ``safetensors``, with a client and paths of its namespace. Tensors are read straight into memory of
their own; slices read the bytes that they need. A file is one version: if it is replaced meanwhile, reads raise ``OSError`` with ESTALE.
NumPy and torch are imported when tensors of theirs are asked for.
"""

from __future__ import annotations

import copy
import importlib
import json
import math
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeGuard, cast

from forebay import _native
from forebay._client import Client, File
from forebay._slices import Index, SafetensorError, runs, taken, together

if TYPE_CHECKING:
    from forebay._client import AnyPath
    from forebay._prefetch import Prefetch

__all__ = ["SafetensorError", "load_file", "safe_open"]

#: The longest header, in bytes, as the format's own library has it.
_MAX_HEADER = 100_000_000
#: Rows of a slice that are read in one call.
_ROWS_AT_ONCE = 65_536
#: Shorter runs of a slice are read into memory of the host, and copied together: each is a copy to a GPU otherwise.
_SHORT_RUN = 256 << 10
#: Of each type: its bits, and its names in NumPy and torch. Of less than a byte, torch has several in one of its elements.
_TYPES: dict[str, tuple[int, str | None, str | None]] = {
    "F4": (4, None, "float4_e2m1fn_x2"),
    "BOOL": (8, "bool_", "bool"),
    "U8": (8, "uint8", "uint8"),
    "I8": (8, "int8", "int8"),
    "U16": (16, "uint16", "uint16"),
    "I16": (16, "int16", "int16"),
    "U32": (32, "uint32", "uint32"),
    "I32": (32, "int32", "int32"),
    "U64": (64, "uint64", "uint64"),
    "I64": (64, "int64", "int64"),
    "F16": (16, "float16", "float16"),
    "BF16": (16, "bfloat16", "bfloat16"),
    "F32": (32, "float32", "float32"),
    "F64": (64, "float64", "float64"),
    "C64": (64, "complex64", "complex64"),
    "F8_E4M3": (8, "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E5M2": (8, "float8_e5m2", "float8_e5m2"),
    "F8_E8M0": (8, "float8_e8m0fnu", "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz", "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz", "float8_e5m2fnuz"),
}


class Tensor(NamedTuple):
    """A tensor, as the header describes it."""

    #: The format's name of its type, such as ``F32``.
    dtype: str
    shape: tuple[int, ...]
    #: Where its bytes are in the file.
    start: int
    end: int


class Header(NamedTuple):
    """What the beginning of a file says."""

    #: In the order of their bytes.
    tensors: dict[str, Tensor]
    metadata: dict[str, str] | None

    @classmethod
    def parse(cls, text: bytes, size: int) -> Header:
        """The header ``text`` of a file of ``size`` bytes. Every tensor that it describes lies within the file, one after the other.

        :raises SafetensorError: if it is none.
        """
        try:
            whole: object = json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise SafetensorError(f"Error while deserializing header: invalid JSON in header: {error}") from error
        if not isinstance(whole, dict):
            raise SafetensorError("Error while deserializing header: it is no JSON object")
        # Names in JSON are text.
        described = cast("dict[str, object]", whole)
        metadata = described.pop("__metadata__", None)
        if metadata is not None and not _is_text(metadata):
            raise SafetensorError("Error while deserializing header: __metadata__ is no map of text")
        begin = 8 + len(text)
        found = [(name, _tensor(name, fields, begin)) for name, fields in described.items()]
        tensors = dict(sorted(found, key=lambda named: (named[1].start, named[1].end, named[0])))
        at = begin
        for name, tensor in tensors.items():
            if tensor.start != at:
                raise SafetensorError(f"Error while deserializing header: invalid offset for tensor `{name}`")
            at = tensor.end
        if at != size:
            raise SafetensorError(f"Error while deserializing header: the tensors end at {at}, the file at {size}")
        return cls(tensors, metadata)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _is_text(metadata: object) -> TypeGuard[dict[str, str]]:
    if not isinstance(metadata, dict):
        return False
    return all(isinstance(text, str) for text in cast("dict[str, object]", metadata).values())


def _are_sizes(values: object) -> TypeGuard[list[int]]:
    def is_size(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63

    return isinstance(values, list) and all(map(is_size, cast("list[object]", values)))


def _tensor(name: str, fields: object, begin: int) -> Tensor:
    wrong = SafetensorError(f"Error while deserializing header: tensor `{name}` is not described as the format has it")
    if not isinstance(fields, dict):
        raise wrong
    described = cast("dict[str, object]", fields)
    if set(described) != {"dtype", "shape", "data_offsets"}:
        raise wrong
    dtype, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise wrong
    start, end = offsets
    # Of types that are not known here, other tensors of the file can be read all the same.
    bits = _TYPES[dtype][0] if dtype in _TYPES else None
    if end < start or (bits is not None and (end - start) * 8 != math.prod(shape) * bits):
        raise SafetensorError(f"Error while deserializing header: tensor `{name}` has not as many bytes as its shape says")
    return Tensor(dtype, tuple(shape), begin + start, begin + end)


class _Framework(Protocol):
    """How arrays are made, and handed out."""

    @property
    def is_lenient(self) -> bool:
        """Whether slices may go beyond the shape. With NumPy, safetensors refuses them; with torch, it leaves that to torch."""
        ...

    def empty(self, shape: Sequence[int], dtype: str) -> tuple[Any, tuple[int, int]]:
        """A new array, and its address and length in bytes."""
        ...

    def fill(self, client: Client, file: File, reads: list[tuple[int, tuple[int, int]]]) -> list[int]:
        """Reads into memory of such arrays, from an offset each; how many bytes each got."""
        ...

    def finish(self, array: Any) -> Any:
        """It, where it is wanted."""
        ...

    def of_runs(self, length: int) -> _Framework:
        """The one for arrays that many reads of ``length`` bytes fill."""
        ...

    def compact(self, array: Any) -> Any:
        """A part of an array, in memory of its own."""
        ...


class _Numpy:
    """Arrays of NumPy."""

    is_lenient = False

    def __init__(self, device: str | int) -> None:
        if str(device) != "cpu":
            raise SafetensorError(f"device {device} is invalid for NumPy; give framework=\"pt\", or device=\"cpu\"")
        self._numpy: Any = importlib.import_module("numpy")

    def empty(self, shape: Sequence[int], dtype: str) -> tuple[Any, tuple[int, int]]:
        array = self._numpy.empty(shape, self._dtype(dtype))
        return array, (array.ctypes.data, array.nbytes)

    def fill(self, client: Client, file: File, reads: list[tuple[int, tuple[int, int]]]) -> list[int]:
        return client.read_into([(file, offset, place) for offset, place in reads])

    def finish(self, array: Any) -> Any:
        return array

    def of_runs(self, length: int) -> _Framework:
        return self

    def compact(self, array: Any) -> Any:
        return array.copy()

    def _dtype(self, name: str) -> Any:
        own = _TYPES[name][1]
        if own is not None and hasattr(self._numpy, own):
            return getattr(self._numpy, own)
        try:
            return getattr(importlib.import_module("ml_dtypes"), str(own))
        except (ImportError, AttributeError):
            text = f"NumPy has no type {name}; install ml_dtypes, which may have it, or give framework=\"pt\""
            raise SafetensorError(text) from None


class _Torch:
    """Tensors of torch: of the host, pinned on the way to a GPU; or of a GPU that is read into, where its CUDA is ours."""

    is_lenient = True

    def __init__(self, device: str | int) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._device = self._torch.device(f"cuda:{device}" if isinstance(device, int) else device)
        self._is_read_into = self._device.type == "cuda" and _has_cuda(self._torch)

    def empty(self, shape: Sequence[int], dtype: str) -> tuple[Any, tuple[int, int]]:
        own = getattr(self._torch, str(_TYPES[dtype][2]), None)
        if own is None:
            raise SafetensorError(f"torch {self._torch.__version__} has no type {dtype}; install a newer one")
        sizes = _in_bytes(shape, dtype)
        if self._is_read_into:
            tensor = self._torch.empty(sizes, dtype=own, device=self._device)
        else:
            # Whatever the default device is.
            tensor = self._torch.empty(sizes, dtype=own, device="cpu", pin_memory=self._device.type == "cuda")
        return tensor, (tensor.data_ptr(), tensor.numel() * tensor.element_size())

    def fill(self, client: Client, file: File, reads: list[tuple[int, tuple[int, int]]]) -> list[int]:
        if not self._is_read_into:
            return client.read_into([(file, offset, place) for offset, place in reads])
        # What had the memory before may still be used by what the stream has.
        stream: int = self._torch.cuda.current_stream(self._device).cuda_stream
        return client.read_into_device([(file, offset, *place) for offset, place in reads], stream=stream)

    def finish(self, array: Any) -> Any:
        return array if self._is_read_into or self._device.type == "cpu" else array.to(self._device)

    def of_runs(self, length: int) -> _Framework:
        if not self._is_read_into or length >= _SHORT_RUN:
            return self
        through_host = copy.copy(self)
        through_host._is_read_into = False
        return through_host

    def compact(self, array: Any) -> Any:
        return array.contiguous()


def _in_bytes(shape: Sequence[int], dtype: str) -> tuple[int, ...]:
    """A shape as torch has it, whose elements are bytes at least."""
    bits = _TYPES[dtype][0]
    if bits >= 8:
        return tuple(shape)
    if not shape or shape[-1] * bits % 8:
        raise SafetensorError(f"{dtype} requires that the last dimension be divisible by {8 // bits} in torch: got {list(shape)}")
    return (*shape[:-1], shape[-1] * bits // 8)


def _has_cuda(torch: Any) -> bool:
    """Whether torch and this package have the same CUDA: torch calls other makers' GPUs ``cuda``, too."""
    if getattr(getattr(torch, "version", None), "cuda", None) is None:
        return False
    try:
        return _native.cuda_devices() > 0
    except OSError:
        return False


def _framework(name: str, device: str | int) -> _Framework:
    if name in ("np", "numpy"):
        return _Numpy(device)
    if name in ("pt", "torch", "pytorch"):
        return _Torch(device)
    raise SafetensorError(f"framework {name} is invalid; give \"np\" or \"pt\"")


class safe_open:  # noqa: N801
    """A file whose tensors are read one by one.

    :param filename: its path in the namespace of ``client``.
    :param framework: ``"np"`` (``"numpy"``) or ``"pt"`` (``"torch"``).
    :param device: of torch: where tensors are handed out, such as ``"cuda:0"`` or its number. Where there is CUDA, they are read into the
        memory of the GPU.
    :param client: what it is read with.
    :param backend: is taken, and makes no difference.
    :raises SafetensorError: if the file is none of the format.
    :raises FileNotFoundError: if there is no such file.
    """

    def __init__(
        self,
        filename: AnyPath,
        framework: str,
        device: str | int = "cpu",
        *,
        client: Client,
        backend: str = "mmap",
    ) -> None:
        if backend not in ("mmap", "pread"):
            raise SafetensorError(f"backend {backend} is invalid; give \"mmap\" or \"pread\"")
        self._framework = _framework(framework, device)
        self._client = client
        self._file: File | None = client.open(filename)
        self._header = _header(self._file)
        self._prefetch: Prefetch | None = None
        self._announced: set[str] = set()

    def __enter__(self) -> Self:
        """The file, to be closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        file, self._file = self._file, None
        if self._prefetch is not None:
            self._prefetch.close()
        if file is not None:
            file.close()

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        self._opened()
        return sorted(self._header.tensors)

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their bytes."""
        self._opened()
        return list(self._header.tensors)

    def metadata(self) -> dict[str, str] | None:
        """What else the header says."""
        self._opened()
        return self._header.metadata

    def get_tensor(self, name: str) -> Any:
        """A tensor, in memory of its own.

        :raises SafetensorError: if there is none of that name.
        """
        return self.get_tensors([name])[name]

    def get_tensors(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Tensors by their names, all of them unless some are named, read in one call."""
        found = {name: self._described(name) for name in (self.offset_keys() if names is None else names)}
        made = {name: self._framework.empty(tensor.shape, tensor.dtype) for name, tensor in found.items()}
        self._fill(self._framework, [(found[name].start, place) for name, (_, place) in made.items()])
        self._has_read(found)
        return {name: self._framework.finish(array) for name, (array, _) in made.items()}

    def get_slice(self, name: str) -> Slice:
        """A tensor of which only parts are read: ``model.get_slice("embedding")[:100, 5:]``."""
        return Slice(self, self._described(name))

    def prefetch(self, names: Iterable[str] | None = None, *, ahead: int = 256 << 20) -> Prefetch:
        """Begin to fetch tensors before they are read, all of them unless some are named, in the order in which they are named.

        Those that were not read yet take at most ``ahead`` bytes of the cache; each that is read makes room for the next. The fetches
        end with the file.
        """
        found = {name: self._described(name) for name in (self.offset_keys() if names is None else names)}
        file = self._opened()
        plan = [(file, tensor.start, tensor.end - tensor.start) for tensor in found.values()]
        if self._prefetch is not None:
            self._prefetch.close()
        self._announced = set(found)
        self._prefetch = self._client.prefetch(plan, ahead=ahead)
        return self._prefetch

    def _has_read(self, names: Iterable[str]) -> None:
        read = self._announced.intersection(names)
        self._announced -= read
        if self._prefetch is not None and read:
            self._prefetch.advance(len(read))

    def _described(self, name: str) -> Tensor:
        tensor = self._header.tensors.get(name)
        if tensor is None:
            raise SafetensorError(f"File does not contain tensor {name}")
        if tensor.dtype not in _TYPES:
            text = f"tensor {name} has the type {tensor.dtype}, which is not known here; read it with safetensors, on a mount"
            raise SafetensorError(text)
        return tensor

    def _opened(self) -> File:
        if self._file is None:
            raise SafetensorError("File is closed")
        return self._file

    def _fill(self, framework: _Framework, reads: list[tuple[int, tuple[int, int]]]) -> None:
        """Fill memory, an address and a length in bytes, from offsets of the file."""
        file = self._opened()
        counts = framework.fill(self._client, file, [(offset, place) for offset, place in reads if place[1] > 0])
        if sum(counts) != sum(length for _, (_, length) in reads):
            raise SafetensorError(f"{file.name} is shorter than its header says")


def _header(file: File) -> Header:
    return Header.parse(header_of(file), file.entry.size)


def header_of(file: File) -> bytes:
    """The header of a file, as it is: JSON.

    :raises SafetensorError: if there is none.
    """
    size = file.entry.size
    length = int.from_bytes(file.pread(8, 0), "little")
    if size < 8 or length > size - 8:
        raise SafetensorError(f"Error while deserializing header: {file.name} is no safetensors file, or not all of one")
    if length > _MAX_HEADER:
        raise SafetensorError(f"Error while deserializing header: the header of {file.name} is too large: {length} bytes")
    return file.pread(length, 8)


class Slice:
    """A tensor of which only parts are read."""

    def __init__(self, opened: safe_open, tensor: Tensor) -> None:
        self._opened, self._tensor = opened, tensor

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """The format's name of its type."""
        return self._tensor.dtype

    def __getitem__(self, index: Index) -> Any:
        """The part, as NumPy would index it, in memory of its own.

        :raises SafetensorError: for numbers beyond the shape, with NumPy for slices beyond it, too, and for negative steps.
        """
        opened, framework, bits = self._opened, self._opened._framework, _TYPES[self._tensor.dtype][0]
        if bits < 8:
            text = f"parts of tensors of {self._tensor.dtype}, which has less than a byte, are not known here; read all of it"
            raise SafetensorError(text)
        width = bits // 8
        parts, kept = taken(self._tensor.shape, index, framework.is_lenient)
        read, thinned = together(self._tensor.shape, parts, width)
        shape = [len(read[dimension]) for dimension in kept]
        _, run = next(runs(self._tensor.shape, read), (0, 0))
        if run < math.prod(shape):
            framework = framework.of_runs(run * width)
        array, (address, length) = framework.empty(shape, self._tensor.dtype)
        reads: list[tuple[int, tuple[int, int]]] = []
        at = address
        for start, count in runs(self._tensor.shape, read) if length else ():
            reads.append((self._tensor.start + start * width, (at, count * width)))
            at += count * width
            if len(reads) == _ROWS_AT_ONCE:
                opened._fill(framework, reads)
                reads.clear()
        opened._fill(framework, reads)
        array = framework.finish(array)
        if thinned is None:
            return array
        steps = tuple(slice(None, None, parts[dimension].step if dimension == thinned else None) for dimension in kept)
        return framework.compact(array[steps])


def load_file(filename: AnyPath, framework: str = "np", device: str | int = "cpu", *, client: Client) -> dict[str, Any]:
    """All tensors of a file by their names, read in one call."""
    with safe_open(filename, framework, device, client=client) as opened:
        return opened.get_tensors()
