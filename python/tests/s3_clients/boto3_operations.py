"""boto3, operation by operation: what the other clients do not ask for, and buckets in the name of the host."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import socket
from typing import Any

import boto3
from boto3_client import of
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from common import ran
from endpoint import BUCKET, Endpoint, endpoint
from suite import same

DOMAIN = "s3.forebay.test"
CONTENT = b"what a cache must never get wrong"
#: The shortest part but the last one that object stores take.
PART = 5 << 20


def refused(call: Any, *arguments: Any, **more: Any) -> tuple[str, int, dict[str, Any]]:
    """The code, the status and all else of an error."""
    try:
        call(*arguments, **more)
    except ClientError as error:
        response: dict[str, Any] = dict(error.response)
        return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"], response
    raise AssertionError(f"{call} {more} is not refused")


def buckets(s3: Any) -> None:
    same([bucket["Name"] for bucket in s3.list_buckets()["Buckets"]], [BUCKET])
    s3.head_bucket(Bucket=BUCKET)
    same(refused(s3.head_bucket, Bucket="nothing")[:2], ("404", 404))
    same(s3.get_bucket_location(Bucket=BUCKET)["LocationConstraint"], None)
    same("Status" in s3.get_bucket_versioning(Bucket=BUCKET), False)
    same(refused(s3.get_bucket_policy, Bucket=BUCKET)[:2], ("NotImplemented", 501))


def attributes(s3: Any) -> None:
    tag = s3.head_object(**of("object"))["ETag"].strip('"')
    found = s3.get_object_attributes(**of("object", ObjectAttributes=["ETag", "ObjectSize", "StorageClass"]))
    same((found["ETag"].strip('"'), found["ObjectSize"], found["StorageClass"]), (tag, len(CONTENT), "STANDARD"))
    found = s3.get_object_attributes(**of("object", ObjectAttributes=["ObjectSize"]))
    same(("ETag" in found, found["ObjectSize"]), (False, len(CONTENT)))


def origins_answers(s3: Any, origin: Any) -> None:
    """ETag and Last-Modified are the origin's."""
    ours, theirs = s3.head_object(**of("object")), origin.head_object(**of("object"))
    same(ours["LastModified"], theirs["LastModified"])
    known = ours["ETag"].strip('"').removesuffix("-1")
    assert known == theirs["ETag"].strip('"') or known == hashlib.md5(CONTENT).hexdigest(), (ours["ETag"], theirs["ETag"])


def overridden(s3: Any) -> None:
    wanted = {
        "ResponseCacheControl": ("CacheControl", "no-store"),
        "ResponseContentDisposition": ("ContentDisposition", 'attachment; filename="a"'),
        "ResponseContentEncoding": ("ContentEncoding", "identity"),
        "ResponseContentLanguage": ("ContentLanguage", "de"),
        "ResponseContentType": ("ContentType", "text/x-test"),
    }
    found = s3.get_object(**of("object", **{name: value for name, (_, value) in wanted.items()}))
    same({field: found[field] for field, _ in wanted.values()}, dict(wanted.values()))
    same(found["Body"].read(), CONTENT)


def parts(s3: Any) -> None:
    """What was put at once is one part."""
    found = s3.get_object(**of("object", PartNumber=1))
    told = (found["ResponseMetadata"]["HTTPStatusCode"], found["ContentRange"])
    same(told, (206, f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}"))
    same(found["Body"].read(), CONTENT)
    same(s3.head_object(**of("object", PartNumber=1))["ContentLength"], len(CONTENT))
    same(refused(s3.get_object, **of("object", PartNumber=2))[:2], ("InvalidPartNumber", 416))
    same(refused(s3.get_object, **of("object", PartNumber=1, Range="bytes=0-1"))[:2], ("InvalidRequest", 400))


def uploads(s3: Any, place: Endpoint) -> None:
    """An upload is gone on with by what is listed of it alone, and the object has its parts."""
    sent = {1: b"a" * PART, 2: b"bcdef"}
    upload = s3.create_multipart_upload(**of("uploaded"))["UploadId"]
    told = {number: s3.upload_part(**of("uploaded", UploadId=upload, PartNumber=number, Body=body))["ETag"] for number, body in sent.items()}
    found = s3.list_multipart_uploads(Bucket=BUCKET, Prefix="upl")["Uploads"]
    same([entry["Key"] for entry in found], ["uploaded"])
    upload = found[0]["UploadId"]
    pages = s3.get_paginator("list_parts").paginate(**of("uploaded", UploadId=upload), PaginationConfig={"PageSize": 1})
    listed = [part for page in pages for part in page["Parts"]]
    same([(part["PartNumber"], part["ETag"], part["Size"]) for part in listed], [(n, told[n], len(sent[n])) for n in sent])
    chosen = [{"PartNumber": part["PartNumber"], "ETag": part["ETag"]} for part in listed]
    s3.complete_multipart_upload(**of("uploaded", UploadId=upload, MultipartUpload={"Parts": chosen}))
    same((place.origin / "uploaded").read_bytes(), b"".join(sent.values()))
    same(refused(s3.list_parts, **of("uploaded", UploadId=upload))[:2], ("NoSuchUpload", 404))
    same("Uploads" in s3.list_multipart_uploads(Bucket=BUCKET), False)
    size = sum(map(len, sent.values()))
    for number, start in ((1, 0), (2, PART)):
        found = s3.get_object(**of("uploaded", PartNumber=number))
        same(found["Body"].read(), sent[number])
        same((found["PartsCount"], found["ContentRange"]), (2, f"bytes {start}-{start + len(sent[number]) - 1}/{size}"))
        found = s3.head_object(**of("uploaded", PartNumber=number))
        same((found["PartsCount"], found["ContentLength"]), (2, len(sent[number])))
    same(refused(s3.get_object, **of("uploaded", PartNumber=3))[:2], ("InvalidPartNumber", 416))


def times(s3: Any) -> None:
    modified = s3.head_object(**of("object"))["LastModified"]
    before, after = modified - datetime.timedelta(minutes=1), modified + datetime.timedelta(minutes=1)
    same(s3.get_object(**of("object", IfModifiedSince=before))["Body"].read(), CONTENT)
    same(refused(s3.get_object, **of("object", IfModifiedSince=modified))[1], 304)
    same(s3.get_object(**of("object", IfUnmodifiedSince=after))["Body"].read(), CONTENT)
    same(refused(s3.get_object, **of("object", IfUnmodifiedSince=before))[1], 412)


def errors(s3: Any, place: Endpoint) -> None:
    code, status, response = refused(s3.get_object, **of("nothing"))
    same((code, status), ("NoSuchKey", 404))
    said = response["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"]
    # In the XML and in the header.
    assert said and said == response["ResponseMetadata"]["RequestId"], response
    same(refused(s3.list_objects_v2, Bucket="nothing")[:2], ("NoSuchBucket", 404))
    same(refused(s3.get_object, **of("object", Range="bytes=100-"))[:2], ("InvalidRange", 416))
    for signature in (UNSIGNED, "s3"):
        client = boto3.client("s3", config=Config(signature_version=signature, retries={"max_attempts": 0}))
        same(refused(client.get_object, **of("object"))[1] in (400, 403), True)
    other = boto3.client("s3", aws_access_key_id=place.key.access, aws_secret_access_key="another")
    same(refused(other.get_object, **of("object"))[:2], ("SignatureDoesNotMatch", 403))


def created_once(s3: Any, place: Endpoint) -> None:
    s3.put_object(**of("created", Body=b"first", IfNoneMatch="*"))
    same(refused(s3.put_object, **of("created", Body=b"second", IfNoneMatch="*"))[:2], ("PreconditionFailed", 412))
    same((place.origin / "created").read_bytes(), b"first")


def in_the_host(place: Endpoint) -> None:
    """The bucket is in the name of the host, of which every one below the domain is this machine."""
    find = socket.getaddrinfo

    def local(host: Any, *arguments: Any, **more: Any) -> Any:
        return find("127.0.0.1" if str(host).endswith(DOMAIN) else host, *arguments, **more)

    socket.getaddrinfo = local
    try:
        port = place.host.rpartition(":")[2]
        virtual = Config(s3={"addressing_style": "virtual"})
        s3 = boto3.client("s3", endpoint_url=f"http://{DOMAIN}:{port}", config=virtual)
        asked: list[str] = []
        s3.meta.events.register("before-send.s3", lambda request, **_: asked.append(request.url))
        same(s3.get_object(**of("object"))["Body"].read(), CONTENT)
        same([entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET, Prefix="obj")["Contents"]], ["object"])
        same([url.startswith(f"http://{BUCKET}.{DOMAIN}:{port}/") for url in asked], [True, True])
    finally:
        socket.getaddrinfo = find


with endpoint(domains=[DOMAIN]) as place:
    (place.origin / "object").write_bytes(CONTENT)
    s3 = boto3.client("s3")
    url, access, secret = place.server
    origin = boto3.client("s3", endpoint_url=url, aws_access_key_id=access, aws_secret_access_key=secret)
    buckets(s3)
    attributes(s3)
    origins_answers(s3, origin)
    overridden(s3)
    parts(s3)
    uploads(s3, place)
    times(s3)
    errors(s3, place)
    created_once(s3, place)
    in_the_host(place)
    does = "buckets, GetObjectAttributes, ETag and Last-Modified of the origin, `response-…`, parts by number, uploads and their parts listed, times, "
    does += "errors with their numbers, `If-None-Match: *` of PutObject, buckets in the host's name"
    ran("boto3, operations", does, importlib.metadata.version("boto3"))
