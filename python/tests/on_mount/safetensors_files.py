"""safetensors, which maps a file, or reads it."""

import random
from pathlib import Path

from common import ran
from mounted import digest, model
from safetensors import safe_open
from safetensors.numpy import load_file

with model() as at:
    for backend in ("mmap", "pread"):
        with safe_open(at.mounted, framework="np", backend=backend) as opened:
            names = sorted(opened.keys(), key=lambda name: random.Random(name).random())
            at.check({name: opened.get_tensor(name) for name in names})
            part = opened.get_slice(names[0])[3:5, 100:200]
        with safe_open(at.plain, framework="np", backend=backend) as plain:
            assert digest(part.copy()) == digest(plain.get_slice(names[0])[3:5, 100:200].copy())

        def load(path: Path, backend: str = backend) -> None:
            with safe_open(path, framework="np", backend=backend) as opened:
                for name in opened.keys():
                    opened.get_tensor(name)

        at.compare(f"safetensors, {backend}", load)
    at.check(load_file(at.mounted))
    ran("safetensors", "`safe_open` with `backend` `mmap` and `pread`, in any order; slices; `load_file`")
