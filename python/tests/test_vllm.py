"""vLLM's load format, with stubs of what vLLM gives it: no vLLM is installed here, so this shows nothing of vLLM itself."""

from __future__ import annotations

import json
import sys
import types
from abc import ABC, abstractmethod
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forebay.safetensors
import forebay.vllm
import numpy
import pytest
import safetensors.numpy

from .conftest import SMALL


class BaseModelLoader(ABC):
    """As vLLM's: what a loader has to have."""

    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config

    @abstractmethod
    def download_model(self, model_config: Any) -> None: ...

    @abstractmethod
    def load_weights(self, model: Any, model_config: Any) -> None: ...


class Model:
    """Takes its weights, as vLLM's models do."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}

    def load_weights(self, weights: Any) -> None:
        self.weights = dict(weights)


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class that is registered."""
    registered: dict[str, Any] = {}
    loaders: Any = types.ModuleType("vllm.model_executor.model_loader")
    loaders.BaseModelLoader = BaseModelLoader

    def register_model_loader(name: str) -> Any:
        def register(loader: Any) -> Any:
            assert issubclass(loader, BaseModelLoader)
            registered[name] = loader
            return loader

        return register

    loaders.register_model_loader = register_model_loader
    for name in ("vllm", "vllm.model_executor"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, loaders.__name__, loaders)
    EntryPoint("forebay", "forebay.vllm:register", "vllm.general_plugins").load()()
    return registered["forebay"]


@pytest.fixture
def model(origin: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two files with an index, and one that it does not name; tensors come as arrays, where there is no torch."""
    monkeypatch.setattr(
        forebay.vllm, "safe_open", lambda path, framework, client: forebay.safetensors.safe_open(path, "np", client=client)
    )
    weights = {f"layer.{number}": numpy.full((3, number + 1), number, numpy.float32) for number in range(6)}
    parts = {"model-1.safetensors": list(weights)[:3], "model-2.safetensors": list(weights)[3:]}
    (origin / "llama").mkdir()
    for part, names in parts.items():
        safetensors.numpy.save_file({name: weights[name] for name in names}, origin / "llama" / part)
    safetensors.numpy.save_file({"other": weights["layer.0"]}, origin / "llama/consolidated.safetensors")
    index = {"weight_map": {name: part for part, names in parts.items() for name in names}}
    (origin / "llama/model.safetensors.index.json").write_text(json.dumps(index))
    return weights


def loaded(loader: Any, origin: Path, extra: dict[str, Any], name: str) -> dict[str, Any]:
    config = SimpleNamespace(model_loader_extra_config={"up": str(origin), **SMALL, **extra})
    model, model_config = Model(), SimpleNamespace(model=name)
    made = loader(config)
    assert made.load_config is config
    made.download_model(model_config)
    made.load_weights(model, model_config)
    return model.weights


@pytest.mark.parametrize("extra, name", [({"path": "/llama"}, "meta/llama"), ({}, "/llama/")])
def test_a_model_gets_the_weights_that_its_index_names(
    loader: Any, model: dict[str, Any], origin: Path, extra: dict[str, Any], name: str
) -> None:
    weights = loaded(loader, origin, extra, name)
    assert weights.keys() == model.keys()
    assert all((weights[name] == wanted).all() for name, wanted in model.items())


def test_without_an_index_every_file_counts_and_without_weights_it_says_so(loader: Any, model: dict[str, Any], origin: Path) -> None:
    (origin / "llama/model.safetensors.index.json").unlink()
    assert "other" in loaded(loader, origin, {}, "/llama")
    with pytest.raises(FileNotFoundError, match="no .safetensors files"):
        loaded(loader, origin, {}, "/tree")
    with pytest.raises(ValueError, match="--model-loader-extra-config"):
        loaded(loader, origin, {}, "meta/llama")
