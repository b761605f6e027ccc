"""The wheel, as `scripts/wheels.py` packs it."""

from __future__ import annotations

import base64
import hashlib
import importlib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
MADE = (2026, 11, 28, 12, 30, 2)
PARTS, RECORD = "forebay-1.dist-info/sboms/forebay-python.cyclonedx.json", "forebay-1.dist-info/RECORD"


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("wheels")


def as_maturin_packs_it(wheel: Path, root: Path) -> None:
    """A wheel of a package in ``root``."""
    files = {
        "forebay/__init__.py": (b"import os\n" * 1000, 0o100644),
        "forebay-1.data/scripts/forebay": (b"\x7fELF" * 1000, 0o100755),
        PARTS: (f'{{"bom-ref": "path+{root.as_uri()}/python#1"}}'.encode(), 0o100644),
        RECORD: (b"forebay/__init__.py,sha256=AAAA,1\n", 0o100644),
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, (content, mode) in files.items():
            entry = zipfile.ZipInfo(name, MADE)
            entry.external_attr, entry.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)


def test_a_wheel_is_the_same_bytes_in_whatever_directory_it_was_built(
    wheels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    for root in (tmp_path / "first", tmp_path / "another one"):
        root.mkdir()
        wheel = root / "forebay-1-py3-none-any.whl"
        as_maturin_packs_it(wheel, root)
        monkeypatch.setattr(wheels, "ROOT", root)
        wheels.without_places(wheel)
        assert list(root.iterdir()) == [wheel]
        built.append(wheel)
    assert built[0].read_bytes() == built[1].read_bytes()
    with zipfile.ZipFile(built[0]) as archive:
        entries = archive.infolist()
        contents = {entry.filename: archive.read(entry) for entry in entries}
    assert contents[PARTS] == b'{"bom-ref": "path+file:///forebay/python#1"}'
    assert all(entry.date_time == MADE and entry.compress_type == zipfile.ZIP_DEFLATED for entry in entries)
    assert [entry.external_attr >> 16 for entry in entries] == [0o100644, 0o100755, 0o100644, 0o100644]
    lines = [line.split(",") for line in contents[RECORD].decode().splitlines()]
    assert lines.pop() == [RECORD, "", ""]
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=") for name, content in contents.items()}
    assert lines == [[name, f"sha256={digests[name]}", str(len(contents[name]))] for name in contents if name != RECORD]
