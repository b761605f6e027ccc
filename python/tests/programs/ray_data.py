"""Datasets of Ray, read and written by its workers, which are other processes."""

import fsspec
import pyarrow
import pyarrow.parquet as parquet
import ray
from common import namespace, ran

with namespace() as place:
    for part in range(4):
        rows = range(part * 1000, (part + 1) * 1000)
        parquet.write_table(pyarrow.table({"n": list(rows)}), place.origin / f"{part}.parquet")
    fs = fsspec.filesystem("forebay", **place.options)
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    try:
        read = ray.data.read_parquet("/", filesystem=fs)
        assert read.count() == 4000 and read.sum("n") == sum(range(4000))
        doubled = read.map_batches(lambda batch: {"n": batch["n"] * 2})
        doubled.write_parquet("/doubled", filesystem=fs)
    finally:
        ray.shutdown()
    assert parquet.read_table(place.origin / "doubled")["n"].to_pandas().sum() == 2 * sum(range(4000))
    ran("ray", "`ray.data`: `read_parquet` and `write_parquet` by workers")
