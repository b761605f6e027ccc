"""What the programs here share: a directory behind Forebay, and a record of what ran.

Each program uses another project on `forebay://`, as its own documentation says for any fsspec file system, and raises if a byte is wrong.
`scripts/python.py programs` runs them, each in an environment of its own with the packages that are locked beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

#: How long a process may take to listen, or to end.
SOON = 30.0
PR_SET_PDEATHSIG = 1


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


def _end_with_parent() -> None:
    """In a process that was forked: it does not outlive who started it, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def running(command: list[object], words: str, log: Path, env: dict[str, str] | None = None) -> Iterator[str]:
    """A process, and what it says after ``words`` once it listens."""
    with log.open("w") as said:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=said, stderr=subprocess.STDOUT, env=env, preexec_fn=_end_with_parent
        )
    try:
        deadline = time.monotonic() + SOON
        while words not in (text := log.read_text()) or not text.endswith("\n"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not listen: {text}")
            time.sleep(0.02)
        yield text.split(words, 1)[1].split()[0]
    finally:
        process.terminate()
        try:
            process.wait(SOON)
        finally:
            process.kill()


def ran(name: str, does: str, version: str | None = None) -> None:
    """Write down that a program ran to its end: with which version (by default, of this distribution), and what it did, in a few words
    for the documentation."""
    record = {"name": name, "version": version or importlib.metadata.version(name), "does": does}
    print(f"{name} {record['version']}: {does}")
    if (path := os.environ.get("PROGRAM_RAN")) is not None:
        Path(path).write_text(json.dumps(record))
