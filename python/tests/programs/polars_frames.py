"""Frames of Polars: of files of fsspec's, and a lazy scan of a dataset."""

import fsspec
import polars
import pyarrow.dataset as dataset
from common import namespace, ran

with namespace() as place:
    fs = fsspec.filesystem("forebay", **place.options)
    frame = polars.DataFrame({"n": range(50_000), "text": [f"row {n}" for n in range(50_000)]})
    with fs.open("/frames/frame.parquet", "wb") as file:
        frame.write_parquet(file)
    with fs.open("/frames/frame.csv", "wb") as file:
        frame.write_csv(file)
    with fs.open("/frames/frame.parquet") as file:
        assert polars.read_parquet(file).equals(frame)
    with fs.open("/frames/frame.csv") as file:
        assert polars.read_csv(file).equals(frame)
    scan = polars.scan_pyarrow_dataset(dataset.dataset("/frames/frame.parquet", format="parquet", filesystem=fs))
    found = scan.filter(polars.col("n") >= 49_990).select("n").collect()
    assert found["n"].to_list() == list(range(49_990, 50_000))
    ran("polars", "`read_parquet`, `read_csv`, `write_…` of files, `scan_pyarrow_dataset`")
