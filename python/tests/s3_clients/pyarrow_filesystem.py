"""PyArrow's own file system of S3, which is Amazon's SDK for C++."""

from __future__ import annotations

from typing import Any

import pyarrow
import pyarrow.dataset as dataset
import pyarrow.parquet as parquet
from endpoint import BUCKET, Endpoint, endpoint
from pyarrow.fs import FileSelector, FileType, S3FileSystem
from suite import MIB, Client, Suite, same


def name(key: str) -> str:
    return f"{BUCKET}/{key}"


class Arrow(Client):
    # Requests of ranges, without a condition.
    gets_one_version = False

    def __init__(self, place: Endpoint) -> None:
        access, secret = place.key
        keys = {"access_key": access, "secret_key": secret, "region": "us-east-1"}
        self.fs: Any = S3FileSystem(endpoint_override=place.url, **keys)

    def _below(self, prefix: str, recursive: bool) -> list[Any]:
        return list(self.fs.get_file_info(FileSelector(name(prefix).rstrip("/"), recursive=recursive)))

    def keys(self, prefix: str) -> list[str]:
        found = [entry.path for entry in self._below(prefix, recursive=True) if entry.type == FileType.File]
        return sorted(path.removeprefix(f"{BUCKET}/") for path in found)

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        listed = [(entry.path.removeprefix(f"{BUCKET}/"), entry.type) for entry in self._below(prefix, recursive=False)]
        prefixes = [f"{path}/" for path, kind in listed if kind == FileType.Directory]
        return prefixes, [path for path, kind in listed if kind == FileType.File]

    def size(self, key: str) -> int:
        return int(self.fs.get_file_info(name(key)).size)

    def is_there(self, key: str) -> bool:
        return bool(self.fs.get_file_info(name(key)).type == FileType.File)

    def get(self, key: str) -> bytes:
        with self.fs.open_input_stream(name(key)) as file:
            return bytes(file.read())

    def range(self, key: str, start: int, end: int) -> bytes:
        with self.fs.open_input_file(name(key)) as file:
            return bytes(file.read_at(end - start, start))

    def put(self, key: str, content: bytes) -> None:
        with self.fs.open_output_stream(name(key)) as file:
            file.write(content)

    def put_in_parts(self, key: str, content: bytes) -> None:
        with self.fs.open_output_stream(name(key)) as file:
            for start in range(0, len(content), MIB):
                file.write(content[start : start + MIB])

    def copy(self, source: str, target: str) -> None:
        self.fs.copy_file(name(source), name(target))

    def delete(self, key: str) -> None:
        self.fs.delete_file(name(key))


def datasets(place: Endpoint, fs: Any) -> None:
    """A dataset that is written, found and read."""
    table = pyarrow.table({"n": list(range(10_000)), "part": [n % 3 for n in range(10_000)]})
    dataset.write_dataset(table, name("tables"), filesystem=fs, format="parquet", partitioning=["part"], partitioning_flavor="hive")
    same(len(list((place.origin / "tables").rglob("*.parquet"))), 3)
    found = dataset.dataset(name("tables"), filesystem=fs, partitioning="hive").to_table(filter=dataset.field("part") == 1)
    same(sorted(found["n"].to_pylist()), [n for n in range(10_000) if n % 3 == 1])
    parquet.write_table(table, name("tables/whole.parquet"), filesystem=fs)
    same(parquet.read_table(name("tables/whole.parquet"), filesystem=fs), table)
    fs.delete_dir(name("tables"))
    same([path for path in (place.origin / "tables").rglob("*") if path.is_file()], [])


with endpoint() as place:
    client = Arrow(place)
    Suite(place, client).run("pyarrow", besides="datasets")
    datasets(place, client.fs)
