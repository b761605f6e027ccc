"""fsspec's own suites for file systems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import SMALL, only_these_settings

pytest.importorskip("fsspec", reason="fsspec is not installed")

import fsspec.tests.abstract as abstract  # noqa: E402
from forebay.fs import ForebayFileSystem  # noqa: E402


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForebayFileSystem]:
    """A worker of a directory in this process, for all tests."""
    place = tmp_path_factory.mktemp("suite")
    (place / "origin").mkdir()
    with only_these_settings(place):
        fs = ForebayFileSystem(up=f"file://{place / 'origin'}", skip_instance_cache=True, **SMALL)
        fs.ls("/")
    yield fs
    fs.client.close()


class Fixtures(abstract.AbstractFixtures):
    """What the suites are run on."""

    @pytest.fixture
    def fs(self, served: ForebayFileSystem) -> ForebayFileSystem:
        """The file system."""
        return served

    @pytest.fixture
    def fs_path(self, fs: ForebayFileSystem, tmp_path: Path) -> Iterator[str]:
        """A directory that no other test uses."""
        path = f"/{tmp_path.name}"
        fs.mkdir(path)
        yield path
        fs.rm(path, recursive=True)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    """Copies from name to name."""


class TestGet(abstract.AbstractGetTests, Fixtures):
    """Files that are brought here."""


class TestPut(abstract.AbstractPutTests, Fixtures):
    """Local files that are taken there."""


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    """Files that are opened."""


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    """Bytes that become files."""
