"""A plugin of pytest: what safetensors' own tests open is read by `forebay.safetensors`, and what comes of each is written down.

They write files with safetensors, in the current directory or in that of temporary files, which has to lie within it. That is the origin of a
client. Tests of PyTorch are skipped where it is not installed; those that are left out have their reasons here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import types
from collections.abc import Generator
from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay.safetensors import SafetensorError, safe_open

ROOT = Path.cwd().resolve()
#: Of tests that do not apply, why.
LEFT_OUT = {
    "ErrorsTestCase::test_file_not_found": "compares the words of an error: Forebay's has errno and path, and says what to do",
    "ReadmeTestCase::test_exception": "opens no file, and expects safetensors' own class of error",
    "TestCase::test_serialize_file_releases_gil": "is about writing, and judges by time",
}
#: What became of each test: whether it passed, why not, and how many files it opened by Forebay.
FOUND: dict[str, dict[str, Any]] = {}


class Needs:
    """In the place of a package that is not installed: anything is there, and a test that calls any of it is skipped."""

    is_collecting = True

    def __init__(self, package: str) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Needs:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> Needs:
        if not Needs.is_collecting:
            pytest.skip(f"needs {self._package}")
        return self


class Module(types.ModuleType):
    """A module of such."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Needs("PyTorch")


class Opened:
    """Files that were opened by Forebay."""

    def __init__(self) -> None:
        # Tests write a file again that they have read.
        settings: dict[str, Any] = {"metadata_ttl": "0", "worker_memory_size": "256MiB", "worker_memory_prewarm": False}
        self.client, self.count = forebay.Client(up=str(ROOT), **settings), 0

    def open(self, filename: Any, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> Any:
        """`safetensors.safe_open`."""
        self.count += 1
        path = Path(os.path.abspath(filename)).relative_to(ROOT)
        return safe_open(f"/{path}", framework, "cpu" if device is None else device, client=self.client, backend=backend)

    def open_handle(self, file: Any, framework: str, device: Any = "cpu") -> Any:
        """`safetensors._safe_open_handle`: of a file that is open, which is opened again."""
        return self.open(file.name, framework, device)


def replaced() -> Opened:
    """Everybody opens files with Forebay from now on."""
    # Before anything asks for PyTorch.
    has_pytorch = importlib.util.find_spec("torch") is not None
    if not has_pytorch:
        sys.modules |= {name: Module(name) for name in ("torch", "safetensors.torch")}
    safetensors: Any = importlib.import_module("safetensors")
    opened = Opened()
    for name in ("safetensors", "safetensors.numpy", *(["safetensors.torch"] if has_pytorch else [])):
        module: Any = importlib.import_module(name)
        module.safe_open = opened.open
    safetensors._safe_open_handle = opened.open_handle
    safetensors.SafetensorError = SafetensorError
    return opened


OPENED: Opened | None = None


def pytest_configure() -> None:
    """Before tests are imported."""
    global OPENED
    # No settings of this machine's count.
    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        del os.environ[name]
    (ROOT / "empty.toml").write_text("")
    os.environ |= {"FOREBAY_CONFIG": str(ROOT / "empty.toml"), "FOREBAY_RUN_DIR": str(ROOT / "run")}
    temporary = ROOT / "tmp"
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    OPENED = replaced()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that do not apply are skipped, with the reason."""
    Needs.is_collecting = False
    for item in items:
        for name, reason in LEFT_OUT.items():
            if item.nodeid.endswith(f"::{name}"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Counts what a test opens."""
    assert OPENED is not None
    before = OPENED.count
    try:
        return (yield)
    finally:
        FOUND.setdefault(named(item.nodeid), {})["opened"] = OPENED.count - before


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What became of a test; each has a report of its beginning, of itself and of its end."""
    found = FOUND.setdefault(named(report.nodeid), {"outcome": "passed", "reason": ""})
    if report.outcome != "passed":
        found["outcome"] = report.outcome
        skipped = report.longrepr
        found["reason"] = skipped[2].removeprefix("Skipped: ") if isinstance(skipped, tuple) else str(skipped)


def named(nodeid: str) -> str:
    """A test, without the directory."""
    return nodeid.rpartition("/")[2]


def pytest_sessionfinish() -> None:
    """Writes it down."""
    Path(os.environ["SAFETENSORS_FOUND"]).write_text(json.dumps(FOUND))
    if OPENED is not None:
        OPENED.client.close()
