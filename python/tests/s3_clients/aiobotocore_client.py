"""aiobotocore: calls of Amazon's SDK that are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError
from endpoint import BUCKET, endpoint
from suite import MIB, Client, Suite, same

PART = 6 * MIB


def of(key: str, **more: Any) -> dict[str, Any]:
    return {"Bucket": BUCKET, "Key": key} | more


class Aiobotocore(Client):
    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.s3: Any = self.wait(self.stack.enter_async_context(get_session().create_client("s3")))
        signing = get_session().create_client("s3", config=AioConfig(signature_version="s3v4"))
        self.signing: Any = self.wait(self.stack.enter_async_context(signing))

    def close(self) -> None:
        self.wait(self.stack.aclose())
        self.runner.close()

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    async def _read(self, key: str, **more: Any) -> bytes:
        found = await self.s3.get_object(**of(key, **more))
        async with found["Body"] as body:
            return bytes(await body.read())

    async def _pages(self, **asked: Any) -> list[dict[str, Any]]:
        return [page async for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, **asked)]

    def keys(self, prefix: str) -> list[str]:
        pages = self.wait(self._pages(Prefix=prefix))
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        pages = self.wait(self._pages(Prefix=prefix, Delimiter="/"))
        prefixes = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
        return prefixes, [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def size(self, key: str) -> int:
        return int(self.wait(self.s3.head_object(**of(key)))["ContentLength"])

    def is_there(self, key: str) -> bool:
        try:
            self.size(key)
        except ClientError as error:
            if error.response["Error"]["Code"] == "404":
                return False
            raise
        return True

    def tag(self, key: str) -> str:
        return str(self.wait(self.s3.head_object(**of(key)))["ETag"])

    def get(self, key: str) -> bytes:
        return bytes(self.wait(self._read(key)))

    def range(self, key: str, start: int, end: int) -> bytes:
        return bytes(self.wait(self._read(key, Range=f"bytes={start}-{end - 1}")))

    def last(self, key: str, count: int) -> bytes:
        return bytes(self.wait(self._read(key, Range=f"bytes=-{count}")))

    def _if(self, code: str, key: str, **condition: str) -> bytes | None:
        try:
            return bytes(self.wait(self._read(key, **condition)))
        except ClientError as error:
            if error.response["Error"]["Code"] == code:
                return None
            raise

    def get_unless(self, key: str, tag: str) -> bytes | None:
        return self._if("304", key, IfNoneMatch=tag)

    def get_if(self, key: str, tag: str) -> bytes | None:
        return self._if("PreconditionFailed", key, IfMatch=tag)

    def pieces(self, key: str) -> Iterator[bytes]:
        body = self.wait(self.s3.get_object(**of(key)))["Body"]
        try:
            while piece := self.wait(body.read(MIB)):
                yield piece
        finally:
            body.close()

    def url(self, key: str) -> str:
        return str(self.wait(self.signing.generate_presigned_url("get_object", Params=of(key), ExpiresIn=60)))

    def url_to_put(self, key: str) -> str:
        return str(self.wait(self.signing.generate_presigned_url("put_object", Params=of(key), ExpiresIn=60)))

    def put(self, key: str, content: bytes) -> None:
        self.wait(self.s3.put_object(**of(key, Body=content)))

    def put_in_parts(self, key: str, content: bytes) -> None:
        self.wait(self._put_in_parts(key, content))

    async def _put_in_parts(self, key: str, content: bytes) -> None:
        # One that is given up leaves nothing.
        given_up = (await self.s3.create_multipart_upload(**of(key)))["UploadId"]
        await self.s3.upload_part(**of(key, UploadId=given_up, PartNumber=1, Body=content[:PART]))
        await self.s3.abort_multipart_upload(**of(key, UploadId=given_up))
        upload = (await self.s3.create_multipart_upload(**of(key)))["UploadId"]
        starts = range(0, len(content), PART)
        calls = [
            self.s3.upload_part(**of(key, UploadId=upload, PartNumber=number, Body=content[at : at + PART]))
            for number, at in enumerate(starts, 1)
        ]
        parts = [{"PartNumber": number, "ETag": part["ETag"]} for number, part in enumerate(await asyncio.gather(*calls), 1)]
        await self.s3.complete_multipart_upload(**of(key, UploadId=upload, MultipartUpload={"Parts": parts}))

    def copy(self, source: str, target: str) -> None:
        self.wait(self.s3.copy_object(**of(target, CopySource={"Bucket": BUCKET, "Key": source})))

    def delete(self, key: str) -> None:
        self.wait(self.s3.delete_object(**of(key)))

    def delete_all(self, keys: list[str]) -> None:
        objects = {"Objects": [{"Key": key} for key in keys]}
        found = self.wait(self.s3.delete_objects(Bucket=BUCKET, Delete=objects))
        same(sorted(entry["Key"] for entry in found["Deleted"]), sorted(keys))


with endpoint() as place:
    client = Aiobotocore()
    Suite(place, client).run("aiobotocore")
    client.close()
