"""obstore: the Rust library `object_store`, from Python."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import obstore
from endpoint import BUCKET, Endpoint, endpoint
from obstore.exceptions import NotModifiedError, PreconditionError
from obstore.store import S3Store
from suite import MIB, Client, Suite


class Obstore(Client):
    def __init__(self, place: Endpoint) -> None:
        self.store: Any = S3Store(BUCKET, endpoint=place.url, client_options={"allow_http": True})

    def keys(self, prefix: str) -> list[str]:
        return sorted(entry["path"] for page in obstore.list(self.store, prefix) for entry in page)

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        listed = obstore.list_with_delimiter(self.store, prefix)
        return [f"{path}/" for path in listed["common_prefixes"]], [entry["path"] for entry in listed["objects"]]

    def size(self, key: str) -> int:
        return obstore.head(self.store, key)["size"]

    def is_there(self, key: str) -> bool:
        try:
            obstore.head(self.store, key)
        except FileNotFoundError:
            return False
        return True

    def tag(self, key: str) -> str:
        return str(obstore.head(self.store, key)["e_tag"])

    def get(self, key: str) -> bytes:
        return bytes(obstore.get(self.store, key).bytes())

    def range(self, key: str, start: int, end: int) -> bytes:
        return bytes(obstore.get_range(self.store, key, start=start, end=end))

    def last(self, key: str, count: int) -> bytes:
        return bytes(obstore.get(self.store, key, options={"range": {"suffix": count}}).bytes())

    def get_unless(self, key: str, tag: str) -> bytes | None:
        try:
            return bytes(obstore.get(self.store, key, options={"if_none_match": tag}).bytes())
        except NotModifiedError:
            return None

    def get_if(self, key: str, tag: str) -> bytes | None:
        try:
            return bytes(obstore.get(self.store, key, options={"if_match": tag}).bytes())
        except PreconditionError:
            return None

    def pieces(self, key: str) -> Iterator[bytes]:
        for piece in obstore.get(self.store, key).stream(min_chunk_size=MIB):
            yield bytes(piece)

    def url(self, key: str) -> str:
        return str(obstore.sign(self.store, "GET", key, timedelta(seconds=60)))

    def url_to_put(self, key: str) -> str:
        return str(obstore.sign(self.store, "PUT", key, timedelta(seconds=60)))

    def put(self, key: str, content: bytes) -> None:
        obstore.put(self.store, key, content, use_multipart=False)

    def put_in_parts(self, key: str, content: bytes) -> None:
        obstore.put(self.store, key, content, use_multipart=True, chunk_size=5 * MIB)

    def copy(self, source: str, target: str) -> None:
        obstore.copy(self.store, source, target)

    def delete(self, key: str) -> None:
        obstore.delete(self.store, key)

    def delete_all(self, keys: list[str]) -> None:
        obstore.delete(self.store, keys)


with endpoint() as place:
    Suite(place, Obstore(place)).run("obstore")
