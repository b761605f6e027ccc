"""The loader of ``fastsafetensors``, with bytes that come through the cache: no mount, and no file on this machine.

>>> import forebay.fastsafetensors
>>> with forebay.Client(etcd="http://etcd1:2379") as client:
...     loader = forebay.fastsafetensors.loader(client, device="cuda:0")
...     loader.add_filenames({0: ["/llama/model-1.safetensors", "/llama/model-2.safetensors"]})
...     tensors = loader.copy_files_to_device()

It is a copier of theirs, registered as ``forebay``, and a loader that reads headers with the client as well; all else is theirs. Each file
is one version: if it is replaced between its header and its bytes, the copy raises ``OSError`` with ESTALE.

It is for the interface of fastsafetensors 0.3 to 0.5, and tested against stubs of both ends of that. On the way to a GPU bytes go through
pinned memory of torch's; that was never run on one. All of a file is read: filters of tensors have no effect on what is read, and loading in
batches of bytes (``max_batch_bytes``) is refused, by them.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from typing import Any

from forebay._client import Client, File
from forebay.safetensors import header_of

__all__ = ["COPIER", "loader", "register"]

#: What the copier is called in their registry.
COPIER = "forebay"
#: Bytes that one read takes: what a call carries out at once are many of them.
_READ = 16 << 20
#: Bytes of each of the two pieces of pinned memory that bytes go through on their way to a GPU.
_PINNED = 64 << 20


def register() -> None:
    """Tell fastsafetensors of the copier. :func:`loader` does so."""
    registry: Any = importlib.import_module("fastsafetensors.copier.registry")
    base: Any = importlib.import_module("fastsafetensors.copier.base")
    copier = copier_class(base.CopierInterface)

    def factory(device: Any, *, client: Client, files: dict[str, File], **_options: Any) -> Any:
        importlib.import_module("fastsafetensors.copier.nogds").load_library_func()

        def construct(metadata: Any, device: Any, framework: Any) -> Any:
            return copier(client, files[metadata.src], metadata, device, framework)

        return construct

    registry.register_copier_constructor(COPIER)(factory)


def loader(client: Client, *, pg: Any = None, device: str = "cpu", framework: str = "pytorch", **options: Any) -> Any:
    """A loader whose files are paths of the namespace of ``client``.

    :param pg: the process group, as theirs has it.
    :param device: where tensors are to be, such as ``"cuda:0"``.
    :param options: of ``BaseSafeTensorsFileLoader``.
    """
    register()
    base: Any = importlib.import_module("fastsafetensors.loader").BaseSafeTensorsFileLoader
    frameworks: Any = importlib.import_module("fastsafetensors.frameworks")
    operations = frameworks.get_framework_op(framework)
    place = operations.get_device(device, operations.get_process_group(pg))
    return loader_class(base)(client, pg, place, framework, options)


def loader_class(base: Any) -> Any:
    """The loader, as a subclass of their ``BaseSafeTensorsFileLoader``."""

    class ForebayFileLoader(base):  # type: ignore[misc, valid-type, unused-ignore]  # pyright: ignore[reportUntypedBaseClass]
        """Loads files through the cache."""

        def __init__(self, client: Client, pg: Any, device: Any, framework: str, options: dict[str, Any]) -> None:
            self._client = client
            self._files: dict[str, File] = {}
            own = {"client": client, "files": self._files}
            super().__init__(pg, device, COPIER, framework=framework, **own, **options)  # pyright: ignore[reportUnknownMemberType]

        def add_filenames(self, filenames: dict[int, list[str]]) -> None:
            """Registers files, by the rank that loads them: in turns, so that no rank has all of the memory at once."""
            own: Any = self
            of_ranks = [[(rank, path) for path in paths] for rank, paths in filenames.items()]
            for turn in itertools.zip_longest(*of_ranks):
                for rank, path in filter(None, turn):
                    metadata = self._metadata(path)
                    own.meta[path] = (metadata, rank)
                    own.frames.update(metadata.tensors)

        def reset(self) -> None:
            """Forgets the files, and closes them."""
            super().reset()  # pyright: ignore[reportUnknownMemberType]
            while self._files:
                self._files.popitem()[1].close()

        def _metadata(self, path: str) -> Any:
            common: Any = importlib.import_module("fastsafetensors.common")
            own: Any = self
            file = self._client.open(path)
            try:
                text = header_of(file)
                metadata = common.SafeTensorsMetadata(
                    text.decode("utf-8"), 8 + len(text), file.entry.size, own.framework, src=path
                )
            except BaseException:
                file.close()
                raise
            replaced = self._files.get(path)
            self._files[path] = file
            if replaced is not None:
                replaced.close()
            return metadata

    return ForebayFileLoader


def copier_class(base: Any) -> Any:
    """The copier, as a subclass of their ``CopierInterface``."""

    class ForebayCopier(base):  # type: ignore[misc, valid-type, unused-ignore]  # pyright: ignore[reportUntypedBaseClass]
        """Reads the tensors of a file, all of them, into memory of a device."""

        def __init__(self, client: Client, file: File, metadata: Any, device: Any, framework: Any) -> None:
            self._client, self._file = client, file
            self.metadata, self._device, self._framework = metadata, device, framework

        def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> Any:
            """A buffer with the bytes in it: it has come when this returns."""
            begin: int = self.metadata.header_length
            length: int = self.metadata.size_bytes - begin
            buffer = self._framework.alloc_tensor_memory(length, self._device)
            address: int = buffer.get_base_address()
            try:
                if self._device.type.value == "cpu":
                    self._read(begin, address, length)
                else:
                    self._copy(begin, address, length)
            except BaseException:
                self._framework.free_tensor_memory(buffer, self._device)
                raise
            return buffer

        def wait_io(self, gbuf: Any, dtype: Any = None, noalign: bool = False, owner: Any = None) -> Any:
            """The tensors in it. ``owner`` is what has to be kept for as long as one of them is: releases before 0.5 know none."""
            wanted: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
            if owner is not None:
                wanted["owner"] = owner
            return self.metadata.get_tensors(gbuf, self._device, self.metadata.header_length, **wanted)

        def _read(self, offset: int, address: int, length: int) -> None:
            """Into memory of the host."""
            reads = [(self._file, offset + at, (address + at, count)) for at, count in _pieces(length, _READ)]
            if sum(self._client.read_into(reads)) != length:
                raise EOFError(f"{self._file.name} is shorter than its header says")

        def _copy(self, offset: int, address: int, length: int) -> None:
            """Into memory of a GPU: while one piece goes there, the next one is read."""
            if self._framework.get_name() != "pytorch":
                raise NotImplementedError(f"there is no pinned memory of {self._framework.get_name()}; give framework=\"pytorch\"")
            torch: Any = importlib.import_module("torch")
            cpp: Any = importlib.import_module("fastsafetensors.cpp")
            size = min(_PINNED, length)
            pinned = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            try:
                for number, (at, count) in enumerate(_pieces(length, size)):
                    piece: int = pinned[number % 2].data_ptr()
                    self._read(offset + at, piece, count)
                    # The other one has arrived, and may be filled next.
                    torch.cuda.synchronize(self._device.as_str())
                    if (code := cpp.memcpy_h2d_async(address + at, piece, count)) != 0:
                        raise RuntimeError(f"copying {self._file.name} to {self._device.as_str()}: CUDA answers {code}")
            finally:
                torch.cuda.synchronize(self._device.as_str())

    return ForebayCopier


def _pieces(length: int, most: int) -> Iterator[tuple[int, int]]:
    """Where each piece begins, and its length."""
    for at in range(0, length, most or 1):
        yield at, min(most, length - at)
