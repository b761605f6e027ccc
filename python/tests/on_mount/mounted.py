"""What the programs here share: a model on a mount, the same file on tmpfs beside it, and what is in it.

Each loads it with another project's loader, as its own documentation says for any directory, and raises if a byte is wrong. The first
load is of a cold cache; then the mount and tmpfs take turns, and what either takes is printed. `scripts/python.py on-mount` runs them,
each in an environment of its own with the packages that are locked beside it. What they print is a measurement if the program is optimised
and ``PROGRAM_MODEL`` is as large as a model.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

MIB = 1 << 20
#: Bytes of the model.
SIZE = int(os.environ.get("PROGRAM_MODEL", 64 * MIB))
TENSORS = 16
#: How long a mount may take to be there, and to go.
SOON = 60.0
ROUNDS = 3


class Model(NamedTuple):
    """One of 16 tensors of whole numbers."""

    #: On the mount.
    mounted: Path
    #: On tmpfs, if there is one: the origin's own file.
    plain: Path
    #: Where the first tensor begins.
    begin: int
    #: The SHA-256 of each tensor.
    digests: dict[str, str]

    def check(self, found: dict[str, Any]) -> None:
        """That these are its tensors, each of anything with its bytes."""
        assert found.keys() == self.digests.keys(), sorted(found)
        wrong = [name for name, tensor in found.items() if digest(tensor) != self.digests[name]]
        assert not wrong, f"{wrong} have other bytes"

    def ranges(self) -> list[tuple[int, int]]:
        """Offset and length of each tensor."""
        length = SIZE // TENSORS
        return [(self.begin + number * length, length) for number in range(TENSORS)]

    def compare(self, name: str, load: Callable[[Path], object]) -> None:
        """Loads it from either, in turns, and prints the medians."""
        took: dict[Path, list[float]] = {self.mounted: [], self.plain: []}
        for _ in range(ROUNDS):
            for path, seconds in took.items():
                began = time.perf_counter()
                load(path)
                seconds.append(time.perf_counter() - began)
        mounted, plain = (statistics.median(took[path]) * 1000 for path in (self.mounted, self.plain))
        print(f"{name}: {SIZE // MIB} MiB from the mount {mounted:.1f} ms, from tmpfs {plain:.1f} ms: {mounted / plain:.2f} ×", flush=True)


def digest(content: Any) -> str:
    """Of whatever is a buffer."""
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def model() -> Iterator[Model]:
    """One on a mount by a `forebay up` with no setting but its memory, cold."""
    program = os.environ["PROGRAM_FOREBAY"]
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        skip("/dev/fuse is not there, or not for this user: nothing can be mounted")
    tmpfs = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fb-", dir=tmpfs) as name:
        place = Path(name)
        mount = place / "mount"
        mount.mkdir()
        begin, digests = written(place / "models/model.safetensors")
        (place / "empty.toml").touch()
        os.environ |= {"FOREBAY_CONFIG": str(place / "empty.toml"), "FOREBAY_RUN_DIR": str(place / "run")}
        # Of which three quarters may be lent to whole files.
        memory = max(4 * SIZE // MIB, 256)
        up = [program, "up", place / "models", mount, "--memory", f"{memory}MiB"]
        started = subprocess.run([str(part) for part in up], capture_output=True, text=True, timeout=SOON)
        if started.returncode != 0 and os.geteuid() != 0:
            skip(f"nothing can be mounted by this user: {started.stderr.strip()}")
        assert started.returncode == 0, started.stderr
        try:
            yield Model(mount / "model.safetensors", place / "models/model.safetensors", begin, digests)
        finally:
            subprocess.run([program, "umount", "--lazy", str(mount)], check=True, timeout=SOON)


def written(path: Path) -> tuple[int, dict[str, str]]:
    """Makes it. Where its first tensor begins, and the digest of each."""
    path.parent.mkdir()
    length = SIZE // TENSORS // 4 * 4
    assert length * TENSORS == SIZE, f"PROGRAM_MODEL has to be a multiple of {TENSORS * 4}"
    side = math.gcd(length // 4, 1 << 10)
    header: dict[str, Any] = {}
    for number in range(TENSORS):
        offsets = [number * length, (number + 1) * length]
        header[f"layer.{number:02}"] = {"dtype": "I32", "shape": [length // 4 // side, side], "data_offsets": offsets}
    text = json.dumps(header).encode()
    # As safetensors itself aligns it.
    text += b" " * (-len(text) % 8)
    digests: dict[str, str] = {}
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for number, tensor in enumerate(header):
            source, sum_of_all = random.Random(number), hashlib.sha256()
            # `randbytes` makes less than 256 MiB at once.
            for begin in range(0, length, 64 * MIB):
                content = source.randbytes(min(64 * MIB, length - begin))
                sum_of_all.update(content)
                file.write(content)
            digests[tensor] = sum_of_all.hexdigest()
    return 8 + len(text), digests


def skip(why: str) -> None:
    """There is nothing to run, for this reason."""
    print(f"skipped: {why}")
    raise SystemExit(0)
