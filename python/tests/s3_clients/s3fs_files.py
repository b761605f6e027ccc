"""s3fs: the file system of fsspec, with files that are read in blocks and written in parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import s3fs
from endpoint import BUCKET, endpoint
from suite import MIB, Client, Suite, same


def name(key: str) -> str:
    return f"{BUCKET}/{key}"


class S3fs(Client):
    def __init__(self) -> None:
        # Listings are not remembered: what else is written here is to be seen.
        self.fs: Any = s3fs.S3FileSystem(use_listings_cache=False)
        self.signing: Any = s3fs.S3FileSystem(config_kwargs={"signature_version": "s3v4"})

    def _keys(self, paths: list[str]) -> list[str]:
        return [path.removeprefix(f"{BUCKET}/") for path in paths]

    def keys(self, prefix: str) -> list[str]:
        return self._keys(self.fs.find(name(prefix)))

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        listed = self.fs.ls(name(prefix), detail=True)
        prefixes = [entry["name"] + "/" for entry in listed if entry["type"] == "directory"]
        return self._keys(prefixes), self._keys([entry["name"] for entry in listed if entry["type"] == "file"])

    def size(self, key: str) -> int:
        return int(self.fs.size(name(key)))

    def is_there(self, key: str) -> bool:
        return bool(self.fs.exists(name(key)))

    def get(self, key: str) -> bytes:
        return bytes(self.fs.cat_file(name(key)))

    def pieces(self, key: str) -> Iterator[bytes]:
        with self.fs.open(name(key), block_size=5 * MIB) as file:
            while piece := file.read(MIB):
                yield bytes(piece)

    def range(self, key: str, start: int, end: int) -> bytes:
        with self.fs.open(name(key), cache_type="none") as file:
            file.seek(start)
            found = bytes(file.read(end - start))
        same(self.fs.cat_ranges([name(key)], [start], [end]), [found])
        return found

    def last(self, key: str, count: int) -> bytes:
        return bytes(self.fs.cat_file(name(key), start=-count))

    def url(self, key: str) -> str:
        return str(self.signing.sign(name(key), expiration=60))

    def put(self, key: str, content: bytes) -> None:
        self.fs.pipe_file(name(key), content)

    def put_in_parts(self, key: str, content: bytes) -> None:
        with self.fs.open(name(key), "wb", block_size=5 * MIB) as file:
            for start in range(0, len(content), MIB):
                file.write(content[start : start + MIB])

    def copy(self, source: str, target: str) -> None:
        self.fs.cp_file(name(source), name(target))

    def delete(self, key: str) -> None:
        self.fs.rm_file(name(key))

    def delete_all(self, keys: list[str]) -> None:
        self.fs.rm([name(key) for key in keys])


with endpoint() as place:
    Suite(place, S3fs()).run("s3fs")
