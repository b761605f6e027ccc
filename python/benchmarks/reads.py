#!/usr/bin/env python3
"""Warm reads from Python, beside the same in Rust and `os.preadv` of the same file on tmpfs: `scripts/python.py bench`.

Prints a table in Markdown: reads a second of one thread, medians of rounds that take turns, and their spread.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import forebay
from forebay.aio import AsyncClient

SIZE = 256 << 20
#: How much of it is made at once.
PIECE = 64 << 20
SMALL, LARGE = 4 << 10, 1 << 20
BATCH = 1000


def rate(read: Callable[[], int], seconds: float) -> float:
    """How many reads a second ``read`` carries out, which says how many it was."""
    reads, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        reads += read()
    return reads / took


class Reads:
    """Each way to read, with offsets that are drawn before the clock runs."""

    def __init__(self, directory: Path, client: forebay.Client) -> None:
        draw = random.Random(1)
        self.small = [draw.randrange(SIZE // SMALL) * SMALL for _ in range(BATCH)]
        self.large = [draw.randrange(SIZE // LARGE) * LARGE for _ in range(100)]
        self.client = client
        self.file = client.open("/file")
        self.descriptor = os.open(directory / "file", os.O_RDONLY)
        memory = bytearray(BATCH * SMALL)
        parts = [memoryview(memory)[at : at + SMALL] for at in range(0, len(memory), SMALL)]
        self.batch = [(self.file, offset, part) for offset, part in zip(self.small, parts, strict=True)]
        self.by_path = [("/file", offset, part) for offset, part in zip(self.small, parts, strict=True)]
        self.buffer = bytearray(LARGE)
        self.short = memoryview(self.buffer)[:SMALL]

    def tmpfs_small(self) -> int:
        for offset in self.small:
            os.preadv(self.descriptor, [self.short], offset)
        return BATCH

    def tmpfs_large(self) -> int:
        for offset in self.large:
            os.preadv(self.descriptor, [self.buffer], offset)
        return len(self.large)

    def batch_by_file(self) -> int:
        self.client.read_into(self.batch)
        return BATCH

    def batch_by_path(self) -> int:
        self.client.read_into(self.by_path)
        return BATCH

    def one_by_one(self) -> int:
        for offset in self.small:
            self.file.readinto(self.short, offset)
        return BATCH

    def readinto_large(self) -> int:
        for offset in self.large:
            self.file.readinto(self.buffer, offset)
        return len(self.large)

    def view_large(self) -> int:
        for offset in self.large:
            self.client.view(self.file, offset, LARGE)
        return len(self.large)

    def asyncio_small(self) -> int:
        async def read() -> None:
            for offset in self.small:
                await self.async_client.read("/file", offset, SMALL)

        self.loop.run_until_complete(read())
        return BATCH

    def begin_asyncio(self, client: AsyncClient) -> None:
        self.loop, self.async_client = asyncio.new_event_loop(), client
        self.loop.run_until_complete(client.read("/file"))

    def end(self) -> None:
        self.loop.run_until_complete(self.async_client.close())
        self.loop.close()
        os.close(self.descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rust", type=Path, help="the example `reads` of forebay-session")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        draw = random.Random(0)
        with (directory / "file").open("wb") as file:
            # `randbytes` makes less than 256 MiB at once.
            for begin in range(0, SIZE, PIECE):
                file.write(draw.randbytes(min(PIECE, SIZE - begin)))
        with forebay.Client(up=directory, worker_memory_size="1GiB") as client:
            client.read("/file")
            reads = Reads(directory, client)
            reads.begin_asyncio(AsyncClient(up=directory, worker_memory_size="1GiB"))
            ways: dict[str, Callable[[], float]] = {}

            def add(title: str, read: Callable[[], int]) -> None:
                ways[title] = lambda: rate(read, options.seconds)

            def add_rust(title: str, length: int) -> None:
                arguments = [directory, "/file", length, options.seconds]
                command = [str(part) for part in (options.rust, *arguments)]
                ways[title] = lambda: float(subprocess.run(command, capture_output=True, check=True).stdout)

            add("4 KiB, os.preadv on tmpfs", reads.tmpfs_small)
            if options.rust:
                add_rust("4 KiB, Rust", SMALL)
            add(f"4 KiB, read_into of {BATCH}, open file", reads.batch_by_file)
            add(f"4 KiB, read_into of {BATCH}, by path", reads.batch_by_path)
            add("4 KiB, readinto", reads.one_by_one)
            add("4 KiB, asyncio, read", reads.asyncio_small)
            add("1 MiB, os.preadv on tmpfs", reads.tmpfs_large)
            if options.rust:
                add_rust("1 MiB, Rust", LARGE)
            add("1 MiB, readinto", reads.readinto_large)
            add("1 MiB, view", reads.view_large)
            rates: dict[str, list[float]] = {title: [] for title in ways}
            for _ in range(options.rounds):
                for title, measure in ways.items():
                    rates[title].append(measure())
            reads.end()
    print("| read | reads a second | spread |\n| --- | --- | --- |")
    for title, found in rates.items():
        spread = (max(found) - min(found)) / statistics.median(found)
        print(f"| {title} | {statistics.median(found):,.0f} | {spread:.0%} |")


if __name__ == "__main__":
    main()
