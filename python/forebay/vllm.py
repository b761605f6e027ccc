"""vLLM's load format ``forebay``: weights are read through the cache, without a mount.

The package registers it by the entry point ``vllm.general_plugins``, so nothing has to be imported:

    vllm serve /models/llama --load-format forebay \\
        --model-loader-extra-config '{"workers": "node1:29999", "path": "/llama"}'

``path`` is the directory of the weights in the namespace; without it, that of the model's name. Everything else says where a
:class:`forebay.Client` reads from. vLLM itself reads configuration and tokenizer by the model's name.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

from forebay._client import Client
from forebay.safetensors import safe_open

#: The name of the load format.
LOAD_FORMAT = "forebay"
_INDEX = "model.safetensors.index.json"


def register() -> None:
    """Tell vLLM of the load format. It calls this in each of its processes."""
    loaders: Any = importlib.import_module("vllm.model_executor.model_loader")
    loaders.register_model_loader(LOAD_FORMAT)(loader_class(loaders.BaseModelLoader))


def loader_class(base: Any) -> Any:
    """The loader, as a subclass of vLLM's ``BaseModelLoader``."""

    class ForebayModelLoader(base):  # type: ignore[misc, valid-type, unused-ignore]  # pyright: ignore[reportUntypedBaseClass]
        """Loads weights through the cache."""

        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)  # pyright: ignore[reportUnknownMemberType]
            self._settings: dict[str, Any] = dict(load_config.model_loader_extra_config or {})
            self._path: str | None = self._settings.pop("path", None)

        def download_model(self, model_config: Any) -> None:
            """Nothing is downloaded: the cache is what keeps it."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            """Gives the model its weights, one after the other."""
            with Client(**self._settings) as client:
                model.load_weights(weights(client, self._path or model_config.model))

    return ForebayModelLoader


def weights(client: Client, directory: str) -> Iterator[tuple[str, Any]]:
    """The names and tensors of the model in a directory, in the memory of the host, fetched ahead of whoever takes them.

    :raises ValueError: if the path is none of the namespace.
    :raises FileNotFoundError: if there is no such directory, or no weights in it.
    """
    if not directory.startswith("/"):
        raise ValueError(f'{directory!r} is no path of the namespace; give "path" in --model-loader-extra-config')
    for path in files(client, directory):
        with safe_open(path, framework="pt", client=client) as opened:
            opened.prefetch()
            for name in opened.offset_keys():
                yield name, opened.get_tensor(name)


def files(client: Client, directory: str) -> list[str]:
    """The files with weights in a directory: those that the index names, if there is one."""
    found = sorted(entry.path for entry in client.ls(directory) if entry.is_file)
    root = directory.rstrip("/")
    if f"{root}/{_INDEX}" in found:
        index: dict[str, Any] = json.loads(client.read(f"{root}/{_INDEX}"))
        return [f"{root}/{name}" for name in sorted(set(index["weight_map"].values()))]
    found = [path for path in found if path.endswith(".safetensors")]
    if not found:
        raise FileNotFoundError(f"there are no .safetensors files in {directory} of the namespace")
    return found
