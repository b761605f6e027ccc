#!/usr/bin/env python3
"""Models through a cache that has them, beside the same file on tmpfs read by others: `scripts/python.py bench-models`.

Prints tables in Markdown: medians of rounds in which all take turns, and how often as fast as the others Forebay is.

* `forebay.safetensors.load_file` beside `safetensors.numpy.load_file`: arrays of all tensors, in memory of their own;
* `libforebay_streamer.so` beside Run:ai's `libstreamer.so`, where that is installed: all tensors into one buffer, by the interface of
  0.17. With `--mount` also Run:ai's on a mount by `forebay up` as it comes; and Run:ai's from the S3 server, if its plug-in is there.

Forebay's cache is in the process, or a worker's in another one on this host.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import forebay
import numpy
from forebay.safetensors import load_file
from safetensors.numpy import load_file as load_from_tmpfs
from safetensors.numpy import save_file
from scene import BUCKET, Rounds, Worker, head, make_plain, mounted, origin, somewhere, worker
from streamers import Streamer, their_streamer

IN_PROCESS, OF_WORKER = "in the process", "of a worker"
OURS, THEIRS = "forebay.safetensors", "safetensors on tmpfs"
OUR_STREAMER, THEIR_STREAMER = "libforebay_streamer.so", "Run:ai's on tmpfs"
THEIRS_ON_MOUNT, THEIRS_ON_S3 = "Run:ai's on the mount", "Run:ai's from S3"
#: Of the bucket in the path, and no questions to a cloud's metadata.
ON_S3 = {"RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0", "AWS_EC2_METADATA_DISABLED": "true"}
NAME = "model.safetensors"


class Sizes(NamedTuple):
    """What the model has, in bytes."""

    tensors: int
    tensor: int
    memory: str
    rounds: int


FULL = Sizes(64, 16 << 20, "2GiB", 5)
#: To see that all of it works: the numbers say nothing.
QUICK = Sizes(4, 1 << 20, "64MiB", 1)


def made(path: Path, sizes: Sizes) -> None:
    """A model of 16-bit floats."""
    path.parent.mkdir(parents=True)
    draw = numpy.random.default_rng(1)
    tensors = {f"layer.{number:03}": draw.random(sizes.tensor // 2, numpy.float32) for number in range(sizes.tensors)}
    save_file({name: tensor.astype(numpy.float16) for name, tensor in tensors.items()}, path)


def timed(load: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    load()
    return time.perf_counter() - began


def compare(path: Path, found: dict[str, Any]) -> None:
    """That these are its tensors."""
    wanted = load_from_tmpfs(path)
    assert wanted.keys() == found.keys()
    assert all(numpy.array_equal(wanted[name], found[name]) for name in wanted), "a tensor has other bytes"


@contextlib.contextmanager
def streamer(library: Path, variables: dict[str, str], load: Callable[[Streamer], object]) -> Iterator[Streamer]:
    """One that starts, and loads for the first time, with these variables in its environment."""
    os.environ |= variables
    started = Streamer(library)
    try:
        load(started)
        for name in variables:
            del os.environ[name]
        yield started
    finally:
        started.close()


def tensors(place: Path, sizes: Sizes, count: int, of: Worker) -> Iterator[str]:
    """The rows of `forebay.safetensors`."""
    path = place / "s3" / BUCKET / NAME
    seen: dict[str, str] = {"network_shared_memory": "on", "network_shared_memory_dir": str(of.windows)}
    by_cache = {IN_PROCESS: Rounds(), OF_WORKER: Rounds()}
    with (
        forebay.Client(up=f"s3://{BUCKET}", worker_memory_size=sizes.memory, worker_memory_prewarm=False) as here,
        forebay.Client(workers=of.address, client_memory_size="64MiB", **seen) as there,
    ):
        clients = {IN_PROCESS: here, OF_WORKER: there}
        for client in clients.values():
            compare(path, load_file(f"/{NAME}", client=client))
        what = f"{sizes.tensors} tensors of {sizes.tensor >> 20} MiB"
        for _ in range(count):
            for cache, client in clients.items():
                by_cache[cache].note(what, OURS, timed(functools.partial(load_file, f"/{NAME}", client=client)))
            theirs = timed(functools.partial(load_from_tmpfs, path))
            for rounds in by_cache.values():
                rounds.note(what, THEIRS, theirs)
    for cache, rounds in by_cache.items():
        yield from rounds.rows(OURS, [THEIRS], cache)


def streamed(
    place: Path, sizes: Sizes, count: int, of: Worker, ours: Path, theirs: Path | None, mount: Path | None
) -> Iterator[str]:
    """The rows of the streamers."""
    path = place / "s3" / BUCKET / NAME
    begin = path.stat().st_size - sizes.tensors * sizes.tensor
    ranges = [(begin + number * sizes.tensor, sizes.tensor) for number in range(sizes.tensors)]
    wanted = numpy.fromfile(path, numpy.uint8, offset=begin)
    buffer = numpy.empty_like(wanted)
    by_cache = {IN_PROCESS: Rounds(), OF_WORKER: Rounds()}
    to_worker = {
        "FOREBAY_CLUSTER_WORKERS": of.address,
        "FOREBAY_NETWORK_SHARED_MEMORY": "on",
        "FOREBAY_NETWORK_SHARED_MEMORY_DIR": str(of.windows),
        "FOREBAY_STREAMER_MAP": f"s3://{BUCKET}=/",
    }
    in_process = {
        "FOREBAY_STREAMER_UP": f"s3://{BUCKET}",
        "FOREBAY_WORKER_MEMORY_PREWARM": "false",
        "FOREBAY_WORKER_MEMORY_SIZE": sizes.memory,
    }

    def first(name: str, started: Streamer) -> None:
        buffer.fill(0)
        started.load(name, ranges, buffer)
        assert numpy.array_equal(buffer, wanted), f"{name} has other bytes"

    cached = f"s3://{BUCKET}/{NAME}"
    libraries = {IN_PROCESS: (ours, in_process, cached), OF_WORKER: (ours, to_worker, cached)}
    if theirs is not None:
        libraries[THEIR_STREAMER] = (theirs, {}, str(path))
        if mount is not None:
            libraries[THEIRS_ON_MOUNT] = (theirs, {}, str(mount / NAME))
        if has_s3(theirs):
            libraries[THEIRS_ON_S3] = (theirs, ON_S3, cached)
    with contextlib.ExitStack() as stack:
        peers: dict[str, tuple[Streamer, str]] = {}
        for peer, (library, variables, name) in libraries.items():
            begun = streamer(library, variables, functools.partial(first, name))
            peers[peer] = (stack.enter_context(begun), name)
        what = f"{sizes.tensors} tensors of {sizes.tensor >> 20} MiB, into one buffer"
        for _ in range(count):
            for peer, (started, name) in peers.items():
                took = timed(functools.partial(started.load, name, ranges, buffer))
                for cache in [peer] if peer in by_cache else list(by_cache):
                    by_cache[cache].note(what, OUR_STREAMER if peer in by_cache else peer, took)
    for cache, rounds in by_cache.items():
        yield from rounds.rows(OUR_STREAMER, other_streamers(theirs, mount), cache)


def has_s3(theirs: Path | None) -> bool:
    """Whether their library's plug-in for S3 is beside it."""
    return theirs is not None and theirs.with_name("libstreamers3.so").exists()


def other_streamers(theirs: Path | None, mount: Path | None) -> list[str]:
    """What stands beside ours."""
    on_mount = [THEIRS_ON_MOUNT] if mount is not None else []
    return [THEIR_STREAMER, *on_mount, *([THEIRS_ON_S3] if has_s3(theirs) else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True, help="forebay-testkit-s3")
    parser.add_argument("--program", type=Path, required=True, help="forebay")
    parser.add_argument("--streamer", type=Path, help="libforebay_streamer.so, to be measured, too")
    parser.add_argument("--mount", action="store_true", help="measure Run:ai's streamer on a mount, too")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="little of all, to see that it works")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    count = options.rounds or sizes.rounds
    with tempfile.TemporaryDirectory(dir=somewhere(options.quick)) as name, contextlib.ExitStack() as stack:
        place = Path(name)
        make_plain(place)
        made(place / "s3" / BUCKET / NAME, sizes)
        stack.enter_context(origin(options.server, place, "0ms"))
        of = stack.enter_context(worker(options.program, place, sizes.memory))
        print(head(OURS, [THEIRS], "cache"))
        print("\n".join(tensors(place, sizes, count, of)), flush=True)
        if options.streamer:
            mount = stack.enter_context(mounted(options.program, place, sizes.tensors * sizes.tensor)) if options.mount else None
            theirs = their_streamer()
            print(f"\n{head(OUR_STREAMER, other_streamers(theirs, mount), 'cache')}")
            rows = streamed(place, sizes, count, of, options.streamer, theirs, mount)
            print("\n".join(rows), flush=True)


if __name__ == "__main__":
    main()
