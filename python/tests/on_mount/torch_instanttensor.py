"""InstantTensor, which reads into memory of a GPU alone: by each of its ways that needs no driver for files."""

from pathlib import Path

import torch
from common import ran
from mounted import model, skip

if not torch.cuda.is_available():
    skip("InstantTensor reads into memory of GPUs, and there is none; tests/tests/models.rs has its way of reading, by fio")

from instanttensor import Backend, safe_open

BACKENDS = (Backend.URING, Backend.AIO, Backend.URING_BUFFERED, Backend.MMAP)


def load(path: Path, backend: Backend, find: bool = False) -> dict[str, object]:
    found = {}
    with safe_open(str(path), framework="pt", device=0, backend=backend) as opened:
        for name, tensor in opened.tensors():
            if find:
                found[name] = tensor.cpu().numpy().copy()
    torch.cuda.synchronize()
    return found


def takes(path: Path, backend: Backend) -> bool:
    """Whether it reads files of that file system: two of them want direct reads, which tmpfs has for none of theirs."""
    try:
        load(path, backend)
    except RuntimeError as error:
        print(f"InstantTensor, {backend.name}: {path} is read by no such backend: {error}")
        return False
    return True


with model() as at:
    for backend in BACKENDS:
        at.check(load(at.mounted, backend, find=True))
        if takes(at.plain, backend):
            at.compare(f"InstantTensor, {backend.name}", lambda path, backend=backend: load(path, backend))
    ran("instanttensor", f"`safe_open` ({', '.join(f'`{backend.name}`' for backend in BACKENDS)}), into memory of a GPU")
