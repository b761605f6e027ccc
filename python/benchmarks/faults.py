#!/usr/bin/env python3
"""A cold model on a mount, mapped, and touched all over or in the order of its bytes: `scripts/python.py bench-faults`.

Prints a table in Markdown: medians of rounds in which both orders take turns, each on a mount that has nothing yet, and how often as fast
what is touched all over is. All bytes are read, in pieces of 64 KiB and of 16 MiB, as of small and of large tensors. A program that faults
all over a `.safetensors` has all of it fetched. Aim: 1.2 × as long at most, so 0.83 × as fast.
"""

from __future__ import annotations

import argparse
import mmap
import random
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from scene import BUCKET, Rounds, fill, head, make_plain, mounted, origin, somewhere

ALL_OVER, IN_ORDER = "all over", "in order"
NAME = "model.safetensors"


class Sizes(NamedTuple):
    """What the model has, in bytes."""

    model: int
    pieces: tuple[int, ...]
    latencies: tuple[str, ...]
    rounds: int


FULL = Sizes(1 << 30, (64 << 10, 16 << 20), ("0ms", "20ms"), 5)
#: To see that all of it works: the numbers say nothing.
QUICK = Sizes(16 << 20, (64 << 10,), ("1ms",), 1)


def touched(path: Path, places: list[int], piece: int, content: bytes) -> float:
    """Seconds in which all of it is copied out of a mapping, in pieces. Some are compared."""
    buffer = bytearray(piece)
    # Opening is a part of it.
    began = time.perf_counter()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping, memoryview(mapping) as bytes_of_it:
        for number, at in enumerate(places):
            buffer[:] = bytes_of_it[at : at + piece]
            if number % 100 == 0:
                assert buffer == content[at : at + piece], f"other bytes at {at}"
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True, help="forebay-testkit-s3")
    parser.add_argument("--program", type=Path, required=True, help="forebay")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="little of all, to see that it works")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    print(head(ALL_OVER, [IN_ORDER], "origin"), flush=True)
    with tempfile.TemporaryDirectory(dir=somewhere(options.quick)) as name:
        place = Path(name)
        make_plain(place)
        bucket = place / "s3" / BUCKET
        [content] = fill(bucket, 1, sizes.model)
        (bucket / "0").rename(bucket / NAME)
        for latency in sizes.latencies:
            with origin(options.server, place, latency):
                rounds = Rounds()
                for number in range(options.rounds or sizes.rounds):
                    for piece in sizes.pieces:
                        in_order = list(range(0, sizes.model, piece))
                        all_over = random.Random(number).sample(in_order, len(in_order))
                        for order, places in ((ALL_OVER, all_over), (IN_ORDER, in_order)):
                            # A new mount for each: it has nothing.
                            with mounted(options.program, place, sizes.model) as mount:
                                took = touched(mount / NAME, places, piece, content)
                            rounds.note(f"{sizes.model >> 20} MiB in pieces of {piece >> 10} KiB", order, took)
                print("\n".join(rounds.rows(ALL_OVER, [IN_ORDER], latency)), flush=True)


if __name__ == "__main__":
    main()
