"""The package: its types, and what importing it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import forebay
import forebay.aio
import forebay.safetensors
import forebay.torch

HERE = Path(__file__).resolve().parent.parent


def test_types_are_checked_strictly() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(Path(forebay.__file__).parent.parent / ".mypy")],
        cwd=HERE,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_pyright_finds_nothing() -> None:
    python = sys.executable
    checked = subprocess.run([python, "-m", "pyright", "--pythonpath", python], cwd=HERE, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_guide_says_which_programs_ran_unchanged() -> None:
    script = HERE.parent / "scripts/python.py"
    checked = subprocess.run([sys.executable, script, "table", "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_reference_has_every_public_name() -> None:
    written = (HERE.parent / "docs/python-api.md").read_text()
    public = {
        f"{module.__name__}.{name}"
        for module in (forebay, forebay.aio, forebay.safetensors, forebay.torch)
        for name in module.__all__
    } - {"forebay.__version__"}
    assert [name for name in sorted(public) if f"\n## {name}\n" not in written] == []


def test_importing_it_starts_no_thread_and_imports_little() -> None:
    program = (
        "import os, sys; import forebay; print(len(os.listdir('/proc/self/task')), 'asyncio' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["1", "False"]
