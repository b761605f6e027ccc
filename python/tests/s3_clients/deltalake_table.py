"""Tables of Delta Lake, whose commits are objects that only one of several writers may create: `If-None-Match: *`."""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path

import pyarrow
from common import ran
from deltalake import DeltaTable, write_deltalake
from endpoint import BUCKET, Endpoint, endpoint
from suite import same, until

WRITERS, ROWS = 4, 1000


def options(place: Endpoint) -> dict[str, str]:
    """Of the Rust library `object_store`."""
    access, secret = place.key
    return {
        "aws_access_key_id": access,
        "aws_secret_access_key": secret,
        "aws_endpoint": place.url,
        "aws_region": "us-east-1",
        "aws_virtual_hosted_style_request": "false",
        "allow_http": "true",
        "conditional_put": "etag",
    }


def rows(writer: int) -> pyarrow.Table:
    return pyarrow.table({"n": list(range(writer * ROWS, (writer + 1) * ROWS)), "writer": [writer] * ROWS})


def total(place: Endpoint, table: str) -> tuple[int, int]:
    """How many rows there are, and their sum."""
    found = DeltaTable(f"s3://{BUCKET}/{table}", storage_options=options(place)).to_pyarrow_table()
    return found.num_rows, sum(found["n"].to_pylist())


def expected(writers: int) -> tuple[int, int]:
    return writers * ROWS, sum(range(writers * ROWS))


def commits(place: Endpoint, table: str) -> list[Path]:
    return sorted((place.origin / table / "_delta_log").glob("*.json"))


with endpoint() as place:
    url = f"s3://{BUCKET}/table"
    write_deltalake(url, rows(0), storage_options=options(place))
    until(lambda: total(place, "table"), expected(1), ...)
    with concurrent.futures.ThreadPoolExecutor(WRITERS) as writers:
        # Each tries again under the next number when another has taken its own.
        appended = [
            writers.submit(write_deltalake, url, rows(writer), mode="append", storage_options=options(place))
            for writer in range(1, WRITERS)
        ]
        for done in appended:
            done.result()
    until(lambda: total(place, "table"), expected(WRITERS), ...)
    # One commit for each of them, none over another.
    same([int(path.stem) for path in commits(place, "table")], list(range(WRITERS)))
    adds = [line for path in commits(place, "table") for line in path.read_text().splitlines() if "add" in json.loads(line)]
    same(len(adds), WRITERS)
    # An earlier version stays.
    earlier = DeltaTable(url, version=0, storage_options=options(place)).to_pyarrow_table()
    same(earlier.num_rows, ROWS)
    write_deltalake(url, rows(7), mode="overwrite", storage_options=options(place))
    until(lambda: total(place, "table")[0], ROWS, ...)
    ran("deltalake", "a table written, appended to by four at once, read as of a version, overwritten")
