"""What benchmarks share: an S3 server on tmpfs, processes of Forebay in front of it, and tables of medians."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import socket
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from common import running

BUCKET = "bench"
#: How many bytes are drawn at once.
PIECE = 64 << 20
#: What stands in a log before the address of an S3 endpoint.
LISTENS = "S3 endpoint listening on "


class Key(NamedTuple):
    """What requests over S3 are signed with."""

    access: str
    secret: str


#: Of the S3 server.
ORIGIN = Key("forebay-test", "forebay-test-secret")


class Worker(NamedTuple):
    """A worker in a process of its own."""

    address: str
    #: The directory by which clients on this host see its memory.
    windows: Path


def make_plain(place: Path) -> None:
    """From now on no setting of this machine counts, for this process and those that it starts."""
    foreign = ("FOREBAY_", "AWS_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    for name in [name for name in os.environ if name.upper().startswith(foreign)]:
        del os.environ[name]
    (place / "empty.toml").touch()
    os.environ |= {"FOREBAY_CONFIG": str(place / "empty.toml"), "FOREBAY_RUN_DIR": str(place / "run"), "NO_PROXY": "127.0.0.1"}


def _drawn(seed: int, size: int) -> bytes:
    draw = random.Random(seed)
    # `randbytes` makes less than 256 MiB at once.
    return b"".join(draw.randbytes(min(PIECE, size - begin)) for begin in range(0, size, PIECE))


def fill(directory: Path, count: int, size: int) -> list[bytes]:
    """Makes files of random bytes, called by their numbers. What is in them."""
    directory.mkdir(parents=True)
    contents = [_drawn(number, size) for number in range(count)]
    for number, content in enumerate(contents):
        (directory / str(number)).write_bytes(content)
    return contents


def somewhere(quick: bool) -> str | None:
    """Where a benchmark has its files: on tmpfs. What only tries whether it works takes whatever there is."""
    return None if quick else "/dev/shm"


def back_memory(size: int) -> None:
    """Takes so many bytes of memory, in huge pages and as many in small ones, and gives all back. A virtual machine gives memory that is
    free for a while to its host, and a page that has to come from there takes many times as long: whoever takes memory first would pay
    for all that do so later. The kernel serves huge pages from other free memory than small ones."""
    if size:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with mmap.mmap(-1, size, flags=flags) as huge, mmap.mmap(-1, size, flags=flags) as small:
            huge.madvise(mmap.MADV_HUGEPAGE)
            for memory in (huge, small):
                memory[:: mmap.PAGESIZE] = bytes(len(range(0, size, mmap.PAGESIZE)))


@contextlib.contextmanager
def origin(server: Path, place: Path, latency: str) -> Iterator[str]:
    """`forebay-testkit-s3` in front of ``place / "s3"``, and this process's environment as a client of it has it. Its URL."""
    command: list[object] = [server, "--dir", place / "s3", "--latency", latency]
    with running(command, "listening on ", place / "s3.log") as url:
        os.environ |= {
            "AWS_ENDPOINT_URL": url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ORIGIN.access,
            "AWS_SECRET_ACCESS_KEY": ORIGIN.secret,
        }
        yield url


@contextlib.contextmanager
def worker(program: Path, place: Path, memory: str) -> Iterator[Worker]:
    """One that has nothing yet, of the bucket."""
    windows = place / "windows"
    settings = _of_worker(memory) | {"network.shared_memory": "on", "network.shared_memory_dir": windows}
    with running([program, "worker", *_options(settings)], "worker listening on ", place / "worker.log") as address:
        yield Worker(address, windows)


@contextlib.contextmanager
def endpoint(program: Path, place: Path, of: Worker) -> Iterator[tuple[str, Key]]:
    """`forebay s3` in front of a worker. Its URL, and a reader's key."""
    key, served = _served(program, place / "keys")
    settings: dict[str, object] = {
        "client.web.port": 0,
        "metadata.ttl": "1h",
        "network.shared_memory": "on",
        "network.shared_memory_dir": of.windows,
    }
    command = [program, "s3", "--listen", "127.0.0.1:0", "--workers", of.address, *_options(settings | served)]
    with running(command, LISTENS, place / "endpoint.log") as address:
        yield f"http://{address}", key


@contextlib.contextmanager
def serving_worker(program: Path, place: Path, memory: str) -> Iterator[tuple[str, Key]]:
    """A worker of the bucket that serves S3 by itself, and has nothing yet. Its URL, and a reader's key."""
    key, served = _served(program, place / "serving_keys")
    with socket.create_server(("127.0.0.1", 0)) as free:
        served["s3.port"] = free.getsockname()[1]
    command = [program, "worker", *_options(_of_worker(memory) | {"network.shared_memory": "off"} | served)]
    with running(command, LISTENS, place / "serving.log") as address:
        yield f"http://{address}", key


def _served(program: Path, keys: Path) -> tuple[Key, dict[str, object]]:
    """A reader's key, and what has it and the bucket be served."""
    made: list[str | Path] = [program, "key", "s3", "--role", "reader", "--client", "bench"]
    line = subprocess.run(made, capture_output=True, text=True, check=True).stdout
    keys.touch(mode=0o600)
    keys.write_text(line)
    access, secret = line.split()[:2]
    return Key(access, secret), {"s3.buckets": f"{BUCKET}=/", "s3.credentials_file": keys}


def _of_worker(memory: str) -> dict[str, object]:
    """The settings of a worker of the bucket."""
    return {
        "metadata.ttl": "1h",
        "mounts": f"/=s3://{BUCKET}",
        "worker.memory.prewarm": "false",
        "worker.memory.size": memory,
        "worker.rpc.bind.host": "127.0.0.1",
        "worker.rpc.port": 0,
        "worker.web.port": 0,
    }


@contextlib.contextmanager
def mounted(program: Path, place: Path, size: int) -> Iterator[Path]:
    """The bucket in a file system, by a process that has memory enough for so many bytes to be materialised, and no other setting. It
    has nothing yet."""
    at = place / "mount"
    at.mkdir(exist_ok=True)
    mount: list[str | Path] = [program, "up", f"s3://{BUCKET}", at, "--memory", f"{max(4 * size >> 20, 128)}MiB"]
    subprocess.run(mount, stdout=subprocess.DEVNULL, check=True)
    try:
        yield at
    finally:
        subprocess.run([program, "umount", "--lazy", at], check=True)


def _options(settings: dict[str, object]) -> list[object]:
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


class Rounds:
    """Seconds, by what was done and by whom, of rounds in which all take turns."""

    def __init__(self) -> None:
        self._took: dict[str, dict[str, list[float]]] = {}

    def note(self, title: str, name: str, seconds: float) -> None:
        """One of them has done it once more."""
        self._took.setdefault(title, {}).setdefault(name, []).append(seconds)

    def rows(self, first: str, others: Sequence[str], *labels: str) -> list[str]:
        """Of a table in Markdown: medians, and how often as fast as each of the others ``first`` is. Who took no turn has none."""
        rows: list[str] = []
        for title, by_name in self._took.items():
            medians = {name: statistics.median(seconds) for name, seconds in by_name.items()}
            cells = [*labels, title]
            cells += [f"{medians[name] * 1000:,.1f} ms" if name in medians else "" for name in (first, *others)]
            cells += [f"{medians[name] / medians[first]:.2f} ×" if name in medians else "" for name in others]
            rows.append(f"| {' | '.join(cells)} |")
        return rows


def head(first: str, others: Sequence[str], *labels: str) -> str:
    """What stands above :meth:`Rounds.rows`."""
    cells = [*labels, "what", first, *others, *(f"of {name}" for name in others)]
    return f"| {' | '.join(cells)} |\n|{' --- |' * len(cells)}"
