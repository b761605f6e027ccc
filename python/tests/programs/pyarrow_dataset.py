"""Datasets of PyArrow: written in partitions, filtered, and read with columns left out."""

import fsspec
import pyarrow
import pyarrow.compute as compute
import pyarrow.dataset as dataset
from common import namespace, ran

with namespace() as place:
    fs = fsspec.filesystem("forebay", **place.options)
    numbers = pyarrow.table({"part": [n % 4 for n in range(100_000)], "n": list(range(100_000)), "text": ["x" * 20] * 100_000})
    partitions = dataset.partitioning(pyarrow.schema([("part", pyarrow.int64())]), flavor="hive")
    dataset.write_dataset(numbers, "/written", format="parquet", partitioning=partitions, filesystem=fs)
    assert len(list(place.origin.glob("written/part=*/*.parquet"))) == 4
    read = dataset.dataset("/written", format="parquet", partitioning="hive", filesystem=fs)
    assert read.count_rows() == 100_000
    some = read.to_table(columns=["n"], filter=(dataset.field("part") == 3) & (dataset.field("n") < 1000))
    assert sorted(some["n"].to_pylist()) == [n for n in range(1000) if n % 4 == 3]
    assert compute.sum(read.to_table(columns=["n"])["n"]).as_py() == sum(range(100_000))
    ran("pyarrow", "`dataset`: partitioned Parquet written, filtered and read")
