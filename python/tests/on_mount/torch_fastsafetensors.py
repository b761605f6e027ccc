"""fastsafetensors: its threads read large pieces, past the page cache, into memory of the host, and of a GPU where there is one."""

import functools
from pathlib import Path

import fastsafetensors
import torch
from common import ran
from mounted import model

DEVICES = ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]


def load(device: str, path: Path, find: bool = False) -> dict[str, object]:
    loader = fastsafetensors.SafeTensorsFileLoader(None, device=device, nogds=True)
    loader.add_filenames({0: [str(path)]})
    files = loader.copy_files_to_device()
    found = {name: files.get_tensor(name).cpu().numpy().copy() for name in loader.get_keys()} if find else {}
    files.close()
    loader.close()
    return found


with model() as at:
    for device in DEVICES:
        at.check(load(device, at.mounted, find=True))
        at.compare(f"fastsafetensors, {device}", functools.partial(load, device))
    where = "the host" if len(DEVICES) == 1 else "the host and of a GPU"
    ran("fastsafetensors", f"`SafeTensorsFileLoader(nogds=True)`, into memory of {where}")
