#!/usr/bin/env python3
"""Random reads of 100 kB from a cold cache, whose order is announced or is not, 20 ms from the origin: `scripts/python.py bench-prefetch`.

Prints a table in Markdown: medians of rounds in which both take turns, and how often as fast what was announced is. In each, nothing is
cached at first. Aim: 5 ×.

* One process reads with `Client(up=…)`, sample after sample, and announces to itself (`client.prefetch`).
* Processes read from a worker, as a `DataLoader` has its workers do, and the process that hands the samples out announces them to it
  (`forebay.torch.AnnouncingSampler`). With `--torch` it is PyTorch's `DataLoader`, and else one of the same shape: as many processes,
  of which each has two samples that it was given and has not answered.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import forebay
import forebay.torch
from loading import METHODS, loader, title
from scene import BUCKET, Rounds, Worker, fill, head, make_plain, origin, somewhere, worker

ANNOUNCED, PLAIN = "announced", "not announced"


class Sizes(NamedTuple):
    """How much is read, in bytes."""

    files: int
    file: int
    samples: int
    sample: int
    latency: str
    memory: str
    rounds: int


FULL = Sizes(32, 16 << 20, 1000, 100_000, "20ms", "1GiB", 5)
#: To see that all of it works: the numbers say nothing.
QUICK = Sizes(4, 2 << 20, 40, 10_000, "5ms", "64MiB", 1)

Sample = tuple[str, int, int]


def drawn(sizes: Sizes, seed: int) -> list[Sample]:
    """An epoch's samples in their order: all over the files, none twice at one place."""
    draw = random.Random(seed)
    places = [(number, at) for number in range(sizes.files) for at in range(0, sizes.file - sizes.sample, sizes.sample)]
    chosen = draw.sample(places, min(sizes.samples, len(places)))
    return [(f"/data/{number}", at, sizes.sample) for number, at in chosen]


def right(contents: list[bytes], sample: Sample, found: bytes) -> bool:
    """Whether these are its bytes."""
    path, at, length = sample
    return found == contents[int(path.rsplit("/", 1)[1])][at : at + length]


def one_process(sizes: Sizes, contents: list[bytes], is_announced: bool, samples: list[Sample]) -> float:
    """Seconds in which one reads them all."""
    with forebay.Client(up=f"s3://{BUCKET}", worker_memory_size=sizes.memory, worker_memory_prewarm=False) as client:
        # Connected, and the names are known: what is measured is reads.
        files = {path: client.open(path) for path in sorted({path for path, _, _ in samples})}
        buffer = bytearray(sizes.sample)
        announced: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if is_announced:
            announced = client.prefetch([(files[path], at, length) for path, at, length in samples])
        began = time.perf_counter()
        with announced as prefetch:
            for number, (path, at, _) in enumerate(samples):
                files[path].readinto(buffer, at)
                if prefetch is not None:
                    prefetch.advance()
                if number % 10 == 0:
                    assert right(contents, samples[number], bytes(buffer)), samples[number]
        return time.perf_counter() - began


_client: Any = None


def begin(of: Worker) -> None:
    """In each process of a loader."""
    global _client
    _client = client_of(of)
    _client.ls("/data")


def read_sample(sample: Sample) -> tuple[Sample, bytes]:
    """In one of them."""
    path, at, length = sample
    return sample, _client.read(path, at, length)


def client_of(of: Worker) -> forebay.Client:
    """One that sees its memory."""
    return forebay.Client(
        workers=of.address,
        network_shared_memory="on",
        network_shared_memory_dir=str(of.windows),
        client_memory_size="64MiB",
    )


def several_processes(contents: list[bytes], is_announced: bool, samples: list[Sample], of: Worker, method: str, torch: bool) -> float:
    """Seconds of an epoch of a loader."""
    processes = loader(torch, method, functools.partial(begin, of), read_sample, samples)
    try:
        with client_of(of) as client:
            client.ls("/data")
            order: Iterable[int] = range(len(samples))
            if is_announced:
                order = forebay.torch.AnnouncingSampler(order, client, lambda number: samples[number])
            began, seen = time.perf_counter(), 0
            for sample, found in processes.read(order):
                seen += 1
                if seen % 10 == 0:
                    assert right(contents, sample, found), sample
            assert seen == len(samples)
            return time.perf_counter() - began
    finally:
        processes.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True, help="forebay-testkit-s3")
    parser.add_argument("--program", type=Path, required=True, help="forebay")
    parser.add_argument("--torch", action="store_true", help="by PyTorch's DataLoader")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="little of all, to see that it works")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    rounds = Rounds()
    with tempfile.TemporaryDirectory(dir=somewhere(options.quick)) as name:
        place = Path(name)
        make_plain(place)
        contents = fill(place / "s3" / BUCKET / "data", sizes.files, sizes.file)
        with origin(options.server, place, sizes.latency):
            for number in range(options.rounds or sizes.rounds):
                samples = drawn(sizes, number)
                what = f"{len(samples)} reads of {sizes.sample // 1000} kB"
                for peer, is_announced in ((ANNOUNCED, True), (PLAIN, False)):
                    took = one_process(sizes, contents, is_announced, samples)
                    rounds.note(f"{what}, one process", peer, took)
                for method in METHODS:
                    for peer, is_announced in ((ANNOUNCED, True), (PLAIN, False)):
                        # A new worker for each: it has nothing.
                        with worker(options.program, place, sizes.memory) as of:
                            took = several_processes(contents, is_announced, samples, of, method, options.torch)
                        rounds.note(f"{what}, {title(options.torch, method)}", peer, took)
    print(head(ANNOUNCED, [PLAIN]))
    print("\n".join(rounds.rows(ANNOUNCED, [PLAIN])))


if __name__ == "__main__":
    main()
