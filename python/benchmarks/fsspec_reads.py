#!/usr/bin/env python3
"""`forebay://` beside s3fs and obstore on one S3 server, 0 and 20 ms away: `scripts/python.py bench-fsspec`.

Prints a table in Markdown: medians of rounds in which all of them take turns, and how often as fast as each of the others Forebay is.

* `cat_ranges`: one call for ranges all over some files, by a file system that knows nothing yet (cold), and once more by the same (warm);
* a loader: processes that each read samples, as a `DataLoader` has its workers do, in two epochs; with `--torch` it is PyTorch's. Forebay's
  are clients of one worker in a process of its own, which has nothing at first.

Before each cold turn, whoever's it is, memory is taken and given back: a client that has nothing yet takes its memory from the kernel, and
how soon a virtual machine gets it from its host is not what is measured. With `--host-memory` it is: nothing is given back then.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
from common import running
from loading import METHODS, loader, title
from scene import back_memory

BUCKET = "bench"
FILES, SIZE = 16, 16 << 20
RANGES, RANGE = 256, 128 << 10
SAMPLES, SAMPLE = 400, 100_000
KEYS = {"access_key": "forebay-test", "secret_key": "forebay-test-secret"}
MEMORY: dict[str, Any] = {"worker_memory_size": "1GiB"}
#: More than a turn needs of memory: Forebay's cache, and what everybody reads into.
NEEDS = 2 << 30


@dataclasses.dataclass
class Peer:
    """A file system, and how it names an object of the bucket."""

    protocol: str
    options: dict[str, Any]
    root: str

    def start(self) -> Any:
        """One that knows nothing yet."""
        if self.protocol == "obstore":
            from obstore.fsspec import FsspecStore

            return FsspecStore("s3", skip_instance_cache=True, **self.options)
        return fsspec.filesystem(self.protocol, skip_instance_cache=True, **self.options)

    def drawn(self, count: int, length: int) -> list[tuple[str, int, int]]:
        """The same ranges for each of them."""
        draw = random.Random(count)
        places = [(draw.randrange(FILES), draw.randrange(SIZE - length)) for _ in range(count)]
        return [(f"{self.root}/{number:02}", at, at + length) for number, at in places]


def close(fs: Any) -> None:
    """Ends what a file system has started, if it can be ended."""
    if hasattr(fs, "client") and hasattr(fs.client, "close"):
        fs.client.close()


def peers(url: str) -> dict[str, Peer]:
    """Those that read from the server by themselves."""
    key, secret = KEYS["access_key"], KEYS["secret_key"]
    s3fs = {"key": key, "secret": secret, "endpoint_url": url, "client_kwargs": {"region_name": "us-east-1"}}
    obstore: dict[str, Any] = {"access_key_id": key, "secret_access_key": secret, "endpoint": url, "region": "us-east-1"}
    obstore |= {"client_options": {"allow_http": True}, "virtual_hosted_style_request": False}
    return {
        "forebay": Peer("forebay", {"up": f"s3://{BUCKET}", **MEMORY}, ""),
        "s3fs": Peer("s3", s3fs, BUCKET),
        "obstore": Peer("obstore", obstore, BUCKET),
    }


def cat_ranges(peer: Peer, backed: int) -> tuple[float, float]:
    """Seconds of one call, cold and warm. So many bytes of memory are given back just before."""
    fs, drawn = peer.start(), peer.drawn(RANGES, RANGE)
    # Connected, without having read anything.
    fs.ls(peer.root or "/")
    paths, starts, ends = (list(column) for column in zip(*drawn, strict=True))
    took = []
    back_memory(backed)
    for _ in range(2):
        began = time.perf_counter()
        found = fs.cat_ranges(paths, starts, ends)
        took.append(time.perf_counter() - began)
        assert all(len(data) == RANGE for data in found)
    close(fs)
    return took[0], took[1]


def apart(measure: Callable[[Peer, int], tuple[float, float]], peer: Peer, backed: int) -> tuple[float, float]:
    """The same in a process of its own: obstore cannot be used in a forked process once its parent has used it."""
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(measure, (peer, backed))


_fs: Any = None


def begin(peer: Peer) -> None:
    """In each process of a loader."""
    global _fs
    _fs = peer.start()
    _fs.ls(peer.root or "/")


def read_sample(sample: tuple[str, int, int]) -> int:
    """In one of them. What a sample becomes does not matter here."""
    path, start, end = sample
    # By name: s3fs has a version in between.
    return len(_fs.cat_file(path, start=start, end=end))


def epochs(peer: Peer, method: str, is_torchs: bool, backed: int) -> tuple[float, float]:
    """Seconds of an epoch, the first and the second. So many bytes of memory are given back just before."""
    samples, took = peer.drawn(SAMPLES, SAMPLE), []
    processes = loader(is_torchs, method, functools.partial(begin, peer), read_sample, samples)
    try:
        back_memory(backed)
        for _ in range(2):
            began = time.perf_counter()
            assert set(processes.read(range(len(samples)))) == {SAMPLE}
            took.append(time.perf_counter() - began)
    finally:
        processes.close()
    return took[0], took[1]


@contextlib.contextmanager
def cluster(program: Path, place: Path) -> Iterator[Peer]:
    """Clients of a worker that has nothing yet."""
    settings = {
        "mounts": f"/=s3://{BUCKET}",
        "network.shared_memory": "on",
        "network.shared_memory_dir": place / "windows",
        "worker.memory.size": "1GiB",
        "worker.rpc.bind.host": "127.0.0.1",
        "worker.rpc.port": 0,
        "worker.web.port": 0,
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    with running([program, "worker", *options], "worker listening on ", place / "worker.log") as address:
        windows = {"network_shared_memory_dir": str(place / "windows")}
        yield Peer("forebay", {"workers": address, **windows}, "")


def measured(
    url: str, program: Path, place: Path, rounds: int, is_torchs: bool, backed: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds, by what was done and by whom."""
    took: dict[str, dict[str, list[float]]] = {}

    def note(what: str, name: str, cold: float, warm: float) -> None:
        for kind, seconds in (("cold", cold), ("warm", warm)):
            took.setdefault(f"{what}, {kind}", {}).setdefault(name, []).append(seconds)

    for _ in range(rounds):
        for name, peer in peers(url).items():
            note("cat_ranges", name, *apart(cat_ranges, peer, backed))
        for method in METHODS:
            for name, peer in peers(url).items():
                what = title(is_torchs, method)
                if name != "forebay":
                    note(what, name, *epochs(peer, method, is_torchs, backed))
                    continue
                # A worker takes its memory when it starts.
                back_memory(backed)
                with cluster(program, place) as of_worker:
                    note(what, name, *epochs(of_worker, method, is_torchs, backed))
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True, help="forebay-testkit-s3")
    parser.add_argument("--program", type=Path, required=True, help="forebay")
    parser.add_argument("--torch", action="store_true", help="by PyTorch's DataLoader")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--host-memory", action="store_true", help="give back no memory before cold turns")
    options = parser.parse_args()
    backed = 0 if options.host_memory else NEEDS
    given = f"{NEEDS >> 30} GiB of memory were taken and given back" if backed else "no memory was given back"
    print(f"Before each cold turn {given}.\n")
    print("| origin | what | forebay | s3fs | obstore | of s3fs | of obstore |\n| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        place = Path(name)
        bucket = place / "s3" / BUCKET
        bucket.mkdir(parents=True)
        for number in range(FILES):
            (bucket / f"{number:02}").write_bytes(random.Random(number).randbytes(SIZE))
        empty = place / "empty.toml"
        empty.write_text("")
        for latency in ("0ms", "20ms"):
            server = [options.server, "--dir", place / "s3", "--latency", latency]
            with running(server, "listening on ", place / "s3.log") as url:
                os.environ |= {
                    "AWS_ENDPOINT_URL": url,
                    "AWS_REGION": "us-east-1",
                    "AWS_ACCESS_KEY_ID": KEYS["access_key"],
                    "AWS_SECRET_ACCESS_KEY": KEYS["secret_key"],
                    "FOREBAY_CONFIG": str(empty),
                    "FOREBAY_RUN_DIR": str(place / "run"),
                }
                for what, by_name in measured(url, options.program, place, options.rounds, options.torch, backed).items():
                    median = {name: statistics.median(seconds) for name, seconds in by_name.items()}
                    cells = [f"{median[name] * 1000:,.1f} ms" for name in ("forebay", "s3fs", "obstore")]
                    cells += [f"{median[name] / median['forebay']:.1f} ×" for name in ("s3fs", "obstore")]
                    print(f"| {latency} | {what} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
