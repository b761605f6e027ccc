"""boto3: the client's calls, its paginators and transfers, with the settings that it has by itself."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError
from endpoint import BUCKET, Endpoint, endpoint
from suite import MIB, Client, Suite, same


def of(key: str, **more: Any) -> dict[str, Any]:
    return {"Bucket": BUCKET, "Key": key} | more


def unless(codes: tuple[str, ...], error: ClientError) -> None:
    """Raises what is none of these."""
    if error.response["Error"]["Code"] not in codes:
        raise error


class Boto3(Client):
    def __init__(self) -> None:
        self.s3 = boto3.client("s3")
        # By itself boto3 signs URLs for us-east-1 with SHA-1, the way before this one; nothing else.
        self.signing = boto3.client("s3", config=Config(signature_version="s3v4"))

    def keys(self, prefix: str) -> list[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        found = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        # The older call, and short pages.
        for name, size in (("list_objects", 1000), ("list_objects_v2", 300)):
            pages = self.s3.get_paginator(name).paginate(Bucket=BUCKET, Prefix=prefix, PaginationConfig={"PageSize": size})
            same([entry["Key"] for page in pages for entry in page.get("Contents", [])], found)
        return found

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        config = {"PageSize": 5}
        listed = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=prefix, Delimiter="/", PaginationConfig=config
        )
        pages = list(listed)
        prefixes = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
        return prefixes, [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def size(self, key: str) -> int:
        return int(self.s3.head_object(**of(key))["ContentLength"])

    def is_there(self, key: str) -> bool:
        try:
            self.s3.head_object(**of(key))
        except ClientError as error:
            unless(("404",), error)
            return False
        return True

    def tag(self, key: str) -> str:
        return str(self.s3.head_object(**of(key))["ETag"])

    def get(self, key: str) -> bytes:
        return bytes(self.s3.get_object(**of(key))["Body"].read())

    def range(self, key: str, start: int, end: int) -> bytes:
        found = self.s3.get_object(**of(key, Range=f"bytes={start}-{end - 1}"))
        same(found["ContentRange"].split("/")[0], f"bytes {start}-{end - 1}")
        return bytes(found["Body"].read())

    def last(self, key: str, count: int) -> bytes:
        return bytes(self.s3.get_object(**of(key, Range=f"bytes=-{count}"))["Body"].read())

    def get_unless(self, key: str, tag: str) -> bytes | None:
        try:
            return bytes(self.s3.get_object(**of(key, IfNoneMatch=tag))["Body"].read())
        except ClientError as error:
            unless(("304",), error)
            return None

    def get_if(self, key: str, tag: str) -> bytes | None:
        try:
            return bytes(self.s3.get_object(**of(key, IfMatch=tag))["Body"].read())
        except ClientError as error:
            unless(("PreconditionFailed",), error)
            return None

    def pieces(self, key: str) -> Iterator[bytes]:
        yield from self.s3.get_object(**of(key))["Body"].iter_chunks(MIB)

    def url(self, key: str) -> str:
        return str(self.signing.generate_presigned_url("get_object", Params=of(key), ExpiresIn=60))

    def url_to_put(self, key: str) -> str:
        return str(self.signing.generate_presigned_url("put_object", Params=of(key), ExpiresIn=60))

    def put(self, key: str, content: bytes) -> None:
        self.s3.put_object(**of(key, Body=content, ContentType="text/plain", Metadata={"a": "b"}))

    def put_in_parts(self, key: str, content: bytes) -> None:
        self.s3.upload_fileobj(io.BytesIO(content), BUCKET, key, Config=TransferConfig(multipart_chunksize=5 * MIB))
        # As transfers get it: in ranges, some at once.
        got = io.BytesIO()
        self.s3.download_fileobj(BUCKET, key, got, Config=TransferConfig(multipart_chunksize=5 * MIB))
        same(got.getvalue(), content)

    def copy(self, source: str, target: str) -> None:
        self.s3.copy_object(**of(target, CopySource={"Bucket": BUCKET, "Key": source}))
        self.s3.copy({"Bucket": BUCKET, "Key": source}, BUCKET, f"{target}.managed")
        self.s3.delete_object(**of(f"{target}.managed"))

    def delete(self, key: str) -> None:
        self.s3.delete_object(**of(key))

    def delete_all(self, keys: list[str]) -> None:
        found = self.s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key} for key in keys]})
        same(sorted(entry["Key"] for entry in found["Deleted"]), sorted(keys))


def reader_is_refused(place: Endpoint) -> None:
    """Who may only read is told so, and the object stays what it is."""
    access, secret = place.reader
    reader = boto3.client("s3", aws_access_key_id=access, aws_secret_access_key=secret)
    same(reader.get_object(**of("small"))["Body"].read(), b"what a cache must never get wrong")
    for change in (lambda: reader.put_object(**of("small", Body=b"x")), lambda: reader.delete_object(**of("small"))):
        try:
            change()
        except ClientError as error:
            same(error.response["Error"]["Code"], "AccessDenied")
        else:
            raise AssertionError("a reader has changed an object")
    same((place.origin / "small").read_bytes(), b"what a cache must never get wrong")


# `boto3_tls.py` has the client of it.
if __name__ == "__main__":
    with endpoint() as place:
        suite = Suite(place, Boto3())
        suite.run("boto3")
        reader_is_refused(place)
