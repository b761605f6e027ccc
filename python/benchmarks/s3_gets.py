#!/usr/bin/env python3
"""Plain GETs by obstore, from Forebay and from the S3 server behind it, 0 and 20 ms away: `scripts/python.py bench-s3`.

Prints a table in Markdown: medians of rounds in which all of them take turns, and how often as fast as each of the others Forebay is,
once by `forebay s3` in front of a worker in another process, and once by a worker that serves S3 itself. Both are warm: everything was
read through them once, and compared. With `--versitygw PROGRAM` that takes turns, too, in front of the same files on tmpfs. Aims: 3 × of
the origin, 1 × of versitygw.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import obstore
from obstore.store import S3Store
from scene import BUCKET, ORIGIN, Key, Rounds, endpoint, fill, head, make_plain, origin, serving_worker, somewhere, worker

OURS = ENDPOINT, WORKER = "`forebay s3`", "worker"
PLAIN, VERSITYGW = "origin", "versitygw"
#: How long versitygw may take to listen.
SOON = 30.0


class Sizes(NamedTuple):
    """How much is read, in bytes."""

    files: int
    file: int
    ranges: int
    range: int
    small_files: int
    small_file: int
    latencies: tuple[str, ...]
    rounds: int


FULL = Sizes(16, 16 << 20, 256, 128 << 10, 400, 100_000, ("0ms", "20ms"), 5)
#: To see that all of it works: the numbers say nothing.
QUICK = Sizes(2, 3 << 20, 8, 10_000, 8, 5_000, ("0ms", "1ms"), 1)


class Get(NamedTuple):
    """Bytes of an object; of all of it without an end."""

    key: str
    start: int
    end: int | None


class Work(NamedTuple):
    """GETs, so many at once."""

    title: str
    gets: list[Get]
    at_once: int


def work(sizes: Sizes) -> list[Work]:
    """What each of them does in a round."""
    draw = random.Random(1)
    places = [(draw.randrange(sizes.files), draw.randrange(sizes.file - sizes.range)) for _ in range(sizes.ranges)]
    ranges = [Get(f"large/{number}", at, at + sizes.range) for number, at in places]
    large = [Get(f"large/{number}", 0, None) for number in range(sizes.files)]
    small = [Get(f"small/{number}", 0, None) for number in range(sizes.small_files)]
    draw.shuffle(small)
    return [
        Work(f"{sizes.files} objects of {sizes.file >> 20} MiB, 4 at once", large, 4),
        Work(f"{sizes.ranges} ranges of {sizes.range >> 10} KiB, one at a time", ranges, 1),
        Work(f"{sizes.ranges} ranges of {sizes.range >> 10} KiB, 16 at once", ranges, 16),
        Work(f"{sizes.small_files} objects of {sizes.small_file // 1000} kB, 16 at once", small, 16),
    ]


async def _got(store: Any, get: Get) -> Any:
    if get.end is None:
        return await (await obstore.get_async(store, get.key)).bytes_async()
    return await obstore.get_range_async(store, get.key, start=get.start, end=get.end)


def take(store: Any, done: Work, contents: dict[str, bytes] | None = None) -> float:
    """How many seconds it takes. With ``contents``, the bytes are compared; else their number is."""

    async def all_of_them() -> None:
        left = iter(done.gets)

        async def some() -> None:
            for get in left:
                found = await _got(store, get)
                if contents is not None:
                    assert bytes(found) == contents[get.key][get.start : get.end], f"{get} has other bytes"
                else:
                    assert get.end is None or len(found) == get.end - get.start, get

        await asyncio.gather(*(some() for _ in range(done.at_once)))

    began = time.perf_counter()
    asyncio.run(all_of_them())
    return time.perf_counter() - began


def store_at(url: str, key: Key) -> Any:
    """A client."""
    return S3Store(
        BUCKET,
        endpoint=url,
        access_key_id=key.access,
        secret_access_key=key.secret,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


@contextlib.contextmanager
def versitygw(program: Path, place: Path) -> Iterator[str]:
    """It, in front of the files of the S3 server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {"ROOT_ACCESS_KEY": ORIGIN.access, "ROOT_SECRET_KEY": ORIGIN.secret}
    # What it says when it listens is another thing with each release.
    command = [program, "--port", f"127.0.0.1:{port}", "--region", "us-east-1", "--quiet", "posix", place / "s3"]
    with (place / "versitygw.log").open("w") as log:
        process = subprocess.Popen([str(part) for part in command], env=os.environ | variables, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + SOON
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{program} does not listen: {(place / 'versitygw.log').read_text()}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(SOON)
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True, help="forebay-testkit-s3")
    parser.add_argument("--program", type=Path, required=True, help="forebay")
    parser.add_argument("--versitygw", type=Path, metavar="PROGRAM", help="versitygw, to be measured, too")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="little of all, to see that it works")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    others = [PLAIN, *([VERSITYGW] if options.versitygw else [])]
    print(head("Forebay", others, "origin", "served by"), flush=True)
    with tempfile.TemporaryDirectory(dir=somewhere(options.quick)) as name:
        place = Path(name)
        make_plain(place)
        bucket = place / "s3" / BUCKET
        contents = {f"large/{number}": content for number, content in enumerate(fill(bucket / "large", sizes.files, sizes.file))}
        small = fill(bucket / "small", sizes.small_files, sizes.small_file)
        contents |= {f"small/{number}": content for number, content in enumerate(small)}
        works = work(sizes)
        for latency in sizes.latencies:
            with contextlib.ExitStack() as stack:
                url = stack.enter_context(origin(options.server, place, latency))
                of = stack.enter_context(worker(options.program, place, "1GiB"))
                stores = {ENDPOINT: store_at(*stack.enter_context(endpoint(options.program, place, of)))}
                stores[WORKER] = store_at(*stack.enter_context(serving_worker(options.program, place, "1GiB")))
                stores[PLAIN] = store_at(url, ORIGIN)
                # It is no further away than its files.
                if options.versitygw and latency == sizes.latencies[0]:
                    stores[VERSITYGW] = store_at(stack.enter_context(versitygw(options.versitygw, place)), ORIGIN)
                for store in stores.values():
                    for done in works:
                        take(store, done, contents)
                rounds = Rounds()
                for _ in range(options.rounds or sizes.rounds):
                    for done in works:
                        for peer, store in stores.items():
                            rounds.note(done.title, peer, take(store, done))
                for by in OURS:
                    print("\n".join(rounds.rows(by, others, latency, by)), flush=True)


if __name__ == "__main__":
    main()
