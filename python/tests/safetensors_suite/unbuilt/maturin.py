"""Stands in for what builds safetensors: pip asks it for the name and version of a source that it fetches, for which the real one would
look for a compiler. They are written down in the source."""

from __future__ import annotations

import email
from pathlib import Path


def prepare_metadata_for_build_wheel(directory: str, config_settings: object = None) -> str:
    """What pip calls, in the directory of the source (PEP 517)."""
    text = Path("PKG-INFO").read_text()
    about = email.message_from_string(text)
    place = Path(directory) / f"{about['Name']}-{about['Version']}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(text)
    return place.name
