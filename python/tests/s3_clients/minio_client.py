"""The MinIO client for Python."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import timedelta

from endpoint import BUCKET, Endpoint, endpoint
from minio import Minio
from minio.commonconfig import CopySource
from minio.deleteobjects import DeleteObject
from minio.error import S3Error
from suite import MIB, Client, Suite, same


class MinioClient(Client):
    def __init__(self, place: Endpoint) -> None:
        access, secret = place.key
        self.s3 = Minio(place.host, access_key=access, secret_key=secret, secure=False)
        # Asked for the region of the bucket by itself above, and told it here.
        self.signing = Minio(place.host, access_key=access, secret_key=secret, secure=False, region="us-east-1")

    def keys(self, prefix: str) -> list[str]:
        found = [str(entry.object_name) for entry in self.s3.list_objects(BUCKET, prefix, recursive=True)]
        older = self.s3.list_objects(BUCKET, prefix, recursive=True, use_api_v1=True)
        same([entry.object_name for entry in older], found)
        return found

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        listed = list(self.s3.list_objects(BUCKET, prefix))
        prefixes = [str(entry.object_name) for entry in listed if entry.is_dir]
        return prefixes, [str(entry.object_name) for entry in listed if not entry.is_dir]

    def size(self, key: str) -> int:
        return int(self.s3.stat_object(BUCKET, key).size or 0)

    def is_there(self, key: str) -> bool:
        try:
            self.s3.stat_object(BUCKET, key)
        except S3Error as error:
            if error.code == "NoSuchKey":
                return False
            raise
        return True

    def tag(self, key: str) -> str:
        return f'"{self.s3.stat_object(BUCKET, key).etag}"'

    def _read(self, key: str, offset: int = 0, length: int = 0, headers: dict[str, str] | None = None) -> bytes:
        answer = self.s3.get_object(BUCKET, key, offset=offset, length=length, request_headers=headers)
        try:
            return bytes(answer.read())
        finally:
            answer.close()
            answer.release_conn()

    def get(self, key: str) -> bytes:
        return self._read(key)

    def range(self, key: str, start: int, end: int) -> bytes:
        return self._read(key, start, end - start)

    def get_if(self, key: str, tag: str) -> bytes | None:
        try:
            return self._read(key, headers={"If-Match": tag})
        except S3Error as error:
            if error.code == "PreconditionFailed":
                return None
            raise

    def pieces(self, key: str) -> Iterator[bytes]:
        answer = self.s3.get_object(BUCKET, key)
        try:
            yield from answer.stream(MIB)
        finally:
            answer.close()
            answer.release_conn()

    def url(self, key: str) -> str:
        return self.signing.presigned_get_object(BUCKET, key, timedelta(seconds=60))

    def url_to_put(self, key: str) -> str:
        return self.signing.presigned_put_object(BUCKET, key, timedelta(seconds=60))

    def put(self, key: str, content: bytes) -> None:
        self.s3.put_object(BUCKET, key, io.BytesIO(content), len(content), metadata={"a": "b"})

    def put_in_parts(self, key: str, content: bytes) -> None:
        # Of a length that it does not know before.
        self.s3.put_object(BUCKET, key, io.BytesIO(content), -1, part_size=5 * MIB)

    def copy(self, source: str, target: str) -> None:
        self.s3.copy_object(BUCKET, target, CopySource(BUCKET, source))

    def delete(self, key: str) -> None:
        self.s3.remove_object(BUCKET, key)

    def delete_all(self, keys: list[str]) -> None:
        same(list(self.s3.remove_objects(BUCKET, [DeleteObject(key) for key in keys])), [])


with endpoint() as place:
    Suite(place, MinioClient(place)).run("minio")
