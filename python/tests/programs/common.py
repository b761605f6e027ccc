"""What the programs here share: a directory behind Forebay, and a record of what ran.

Each program uses another project on `forebay://`, as its own documentation says for any fsspec file system, and raises if a byte is wrong.
`scripts/python.py programs` runs them, each in an environment of its own with the packages that are locked beside it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Namespace(NamedTuple):
    """A directory behind Forebay."""

    #: Where its files are.
    origin: Path
    #: What fsspec calls storage options.
    options: dict[str, Any]


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    """An empty one, cached in this process."""
    with tempfile.TemporaryDirectory(prefix="forebay-programs-") as directory:
        place = Path(directory)
        (place / "origin").mkdir()
        (place / "empty.toml").write_text("")
        os.environ |= {"FOREBAY_CONFIG": str(place / "empty.toml"), "FOREBAY_RUN_DIR": str(place / "run")}
        memory: dict[str, Any] = {"worker_memory_size": "256MiB", "worker_memory_prewarm": False}
        yield Namespace(place / "origin", {"up": f"file://{place / 'origin'}", **memory})


def ran(distribution: str, does: str) -> None:
    """Write down that a program ran to its end: with which version, and what it did, in a few words for the documentation."""
    record = {"name": distribution, "version": importlib.metadata.version(distribution), "does": does}
    print(f"{distribution} {record['version']}: {does}")
    if (path := os.environ.get("PROGRAM_RAN")) is not None:
        Path(path).write_text(json.dumps(record))
