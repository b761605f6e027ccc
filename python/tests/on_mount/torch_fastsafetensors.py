"""fastsafetensors, into memory of the host: its threads read large pieces, past the page cache."""

from pathlib import Path

import fastsafetensors
from common import ran
from mounted import model


def load(path: Path, find: bool = False) -> dict[str, object]:
    loader = fastsafetensors.SafeTensorsFileLoader(None, device="cpu", nogds=True)
    loader.add_filenames({0: [str(path)]})
    files = loader.copy_files_to_device()
    found = {name: files.get_tensor(name).numpy().copy() for name in loader.get_keys()} if find else {}
    files.close()
    loader.close()
    return found


with model() as at:
    at.check(load(at.mounted, find=True))
    at.compare("fastsafetensors", load)
    ran("fastsafetensors", "`SafeTensorsFileLoader(nogds=True)`, into memory of the host")
