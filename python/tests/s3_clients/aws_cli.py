"""The AWS CLI: `aws s3`, and `aws s3api` for what that has no command for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from commands import Failed, Files, said_by
from endpoint import BUCKET, Endpoint, endpoint
from suite import LARGE, Client, Suite, content, same


#: Seconds since 1970.
LONG_AGO = 1_700_000_000


def aws(*arguments: str | Path) -> bytes:
    return said_by(["aws", *map(str, arguments)])


def api(operation: str, *arguments: str | Path) -> Any:
    said = aws("s3api", operation, "--bucket", BUCKET, *arguments)
    return json.loads(said) if said.strip() else {}


def name(key: str) -> str:
    return f"s3://{BUCKET}/{key}"


class AwsCli(Client):
    def __init__(self, place: Endpoint) -> None:
        self.files = Files(place.scratch)
        # For `presign`, which by itself signs with SHA-1.
        config = self.files.of(b"[default]\ns3 =\n    signature_version = s3v4\n")
        os.environ["AWS_CONFIG_FILE"] = str(config)

    def keys(self, prefix: str) -> list[str]:
        lines = aws("s3", "ls", "--recursive", "--page-size", "400", name(prefix)).decode().splitlines()
        # Date, time and size come before the key.
        return [line.split(maxsplit=3)[3] for line in lines]

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        lines = [line.strip() for line in aws("s3", "ls", name(prefix)).decode().splitlines()]
        prefixes = [prefix + line.removeprefix("PRE ") for line in lines if line.startswith("PRE ")]
        return prefixes, [prefix + line.split(maxsplit=3)[3] for line in lines if not line.startswith("PRE ")]

    def size(self, key: str) -> int:
        return int(api("head-object", "--key", key)["ContentLength"])

    def is_there(self, key: str) -> bool:
        try:
            api("head-object", "--key", key)
        except Failed as failed:
            if "(404)" in failed.said:
                return False
            raise
        return True

    def tag(self, key: str) -> str:
        return str(api("head-object", "--key", key)["ETag"])

    def get(self, key: str) -> bytes:
        path = self.files.new()
        aws("s3", "cp", "--only-show-errors", name(key), path)
        return self.files.taken(path)

    def _get_object(self, key: str, *arguments: str) -> bytes:
        path = self.files.new()
        api("get-object", "--key", key, *arguments, path)
        return self.files.taken(path)

    def range(self, key: str, start: int, end: int) -> bytes:
        return self._get_object(key, "--range", f"bytes={start}-{end - 1}")

    def last(self, key: str, count: int) -> bytes:
        return self._get_object(key, "--range", f"bytes=-{count}")

    def get_unless(self, key: str, tag: str) -> bytes | None:
        try:
            return self._get_object(key, "--if-none-match", tag)
        except Failed as failed:
            if "(304)" in failed.said:
                return None
            raise

    def get_if(self, key: str, tag: str) -> bytes | None:
        try:
            return self._get_object(key, "--if-match", tag)
        except Failed as failed:
            if "(PreconditionFailed)" in failed.said:
                return None
            raise

    def url(self, key: str) -> str:
        return aws("s3", "presign", "--expires-in", "60", name(key)).decode().strip()

    def put(self, key: str, content: bytes) -> None:
        path = self.files.of(content)
        aws("s3", "cp", "--only-show-errors", path, name(key))
        path.unlink()

    def put_in_parts(self, key: str, content: bytes) -> None:
        # Of 8 MiB by itself.
        self.put(key, content)

    def copy(self, source: str, target: str) -> None:
        aws("s3", "cp", "--only-show-errors", name(source), name(target))

    def delete(self, key: str) -> None:
        aws("s3", "rm", "--only-show-errors", name(key))

    def delete_all(self, keys: list[str]) -> None:
        found = api("delete-objects", "--delete", json.dumps({"Objects": [{"Key": key} for key in keys]}))
        same(sorted(entry["Key"] for entry in found["Deleted"]), sorted(keys))


def synchronized(place: Endpoint) -> None:
    """A tree there and back; what has not changed is not sent again."""
    tree = place.scratch / "tree"
    files = {"one": b"1", "deep/two": content(1, 1000), "deep/large": content(2, LARGE), "deep/er/ü b": b"3"}
    for path, data in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(data)
        # What was written in the second of its upload is newer than that, which is told in whole seconds, and would be sent again.
        os.utime(tree / path, (LONG_AGO, LONG_AGO))
    aws("s3", "sync", "--only-show-errors", tree, name("synchronized"))
    same({path: (place.origin / "synchronized" / path).read_bytes() for path in files}, files)
    same(aws("s3", "sync", tree, name("synchronized")), b"")
    back = place.scratch / "back"
    aws("s3", "sync", "--only-show-errors", name("synchronized"), back)
    same({path: (back / path).read_bytes() for path in files}, files)
    aws("s3", "rm", "--recursive", "--only-show-errors", name("synchronized"))
    same([path for path in (place.origin / "synchronized").rglob("*") if path.is_file()], [])


with endpoint() as place:
    suite = Suite(place, AwsCli(place))
    suite.run("awscli", besides="`sync`")
    synchronized(place)
