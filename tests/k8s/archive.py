#!/usr/bin/env python3
"""Makes an image of one program, with the libraries that it is linked with, as a file that `ctr images import` takes.

    archive.py NAME:TAG PROGRAM > image.tar

The program is in /usr/bin, and is what a container runs that says nothing else.
"""

import hashlib
import io
import json
import pathlib
import subprocess
import sys
import tarfile


def libraries(program):
    """What the program is linked with, and its loader; nothing if it is static."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True)
    words = said.stdout.split() if said.returncode == 0 else []
    return sorted({word for word in words if word.startswith("/") and pathlib.Path(word).exists()})


def add(tar, name, content, mode=0o755):
    entry = tarfile.TarInfo(name.lstrip("/"))
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def main():
    name, program = sys.argv[1], pathlib.Path(sys.argv[2])
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        add(tar, f"usr/bin/{program.name}", program.read_bytes())
        for library in libraries(program):
            add(tar, library, pathlib.Path(library).read_bytes())
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/usr/bin/{program.name}"], "Env": ["PATH=/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
        add(tar, "layer.tar", layer.getvalue(), 0o644)
        add(tar, "config.json", json.dumps(config).encode(), 0o644)
        add(tar, "manifest.json", json.dumps(manifest).encode(), 0o644)


if __name__ == "__main__":
    main()
