"""Polars: lazy scans of `s3://…`, and sinks."""

from __future__ import annotations

import polars
from common import ran
from endpoint import BUCKET, endpoint
from suite import same, until

with endpoint() as place:
    access, secret = place.key
    options = {"aws_endpoint_url": place.url, "aws_access_key_id": access, "aws_secret_access_key": secret}
    options |= {"aws_region": "us-east-1"}
    frames = [polars.DataFrame({"n": range(part, 300_000, 3), "part": [part] * 100_000}) for part in range(3)]
    (place.origin / "tables").mkdir()
    for part, frame in enumerate(frames):
        frame.write_parquet(place.origin / f"tables/{part}.parquet", row_group_size=10_000)
    frames[1].write_csv(place.origin / "tables/one.csv")

    def total() -> tuple[int, int]:
        scan = polars.scan_parquet(f"s3://{BUCKET}/tables/*.parquet", storage_options=options)
        [(rows, n)] = scan.select(polars.len(), polars.col("n").sum()).collect().rows()
        return rows, n

    before = (300_000, sum(range(300_000)))
    same(total(), before)
    # The group of rows that has them.
    found = polars.scan_parquet(f"s3://{BUCKET}/tables/2.parquet", storage_options=options).filter(polars.col("n") >= 299_990)
    same(found.collect()["n"].to_list(), [n for n in range(299_990, 300_000) if n % 3 == 2])
    assert polars.read_parquet(f"s3://{BUCKET}/tables/0.parquet", storage_options=options).equals(frames[0])
    assert polars.scan_csv(f"s3://{BUCKET}/tables/one.csv", storage_options=options).collect().equals(frames[1])
    # One that is replaced.
    beside = place.scratch / "new.parquet"
    frames[0].head(10).write_parquet(beside)
    beside.rename(place.origin / "tables/0.parquet")
    rows = 200_010
    until(total, (rows, sum(frames[0]["n"][:10]) + sum(frames[1]["n"]) + sum(frames[2]["n"])), before)
    # Written, at once and in parts.
    large = polars.DataFrame({"n": range(2_000_000)})
    large.write_parquet(f"s3://{BUCKET}/written/large.parquet", storage_options=options, compression="uncompressed")
    assert polars.read_parquet(place.origin / "written/large.parquet").equals(large)
    frames[1].lazy().sink_parquet(f"s3://{BUCKET}/written/sunk.parquet", storage_options=options)
    assert polars.read_parquet(place.origin / "written/sunk.parquet").equals(frames[1])
    ran("polars", "`scan_parquet` by name and by pattern, `scan_csv`, files that are replaced, `write_parquet`, `sink_parquet`")
