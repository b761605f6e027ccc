#!/usr/bin/env python3
"""Makes a JSON schema for each kind of Kubernetes' own objects, of its description of the API.

    k8s-schemas.py .../api/openapi-spec/swagger.json DIRECTORY

Files are named as kubeconform looks for them: `deployment-apps-v1.json`, `service-v1.json`. A property that there is not is an
error, so a misspelt one is found.
"""

import json
import sys
from pathlib import Path


def strict(schema):
    """Objects have the properties that are described, and no others."""
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    for below in schema.values():
        if isinstance(below, dict):
            strict(below)
    return schema


def needed(name, definitions, found):
    """All definitions that one refers to."""
    if name not in found:
        found[name] = definitions[name]
        for reference in references(definitions[name]):
            needed(reference, definitions, found)
    return found


def references(part):
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].removeprefix("#/definitions/")
        for below in part.values():
            yield from references(below)
    elif isinstance(part, list):
        for below in part:
            yield from references(below)


def loosened(definitions):
    """What the description leaves out: numbers or text, and fields that may be null."""
    for definition in definitions.values():
        if definition.get("format") == "int-or-string":
            definition.pop("type", None)
        if definition.get("description", "").startswith("Quantity is"):
            definition["type"] = ["string", "number"]
    return definitions


def main():
    source, directory = Path(sys.argv[1]), Path(sys.argv[2])
    definitions = loosened(json.loads(source.read_text())["definitions"])
    for definition in definitions.values():
        strict(definition)
    directory.mkdir(parents=True, exist_ok=True)
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            parts = [kind["kind"], kind["group"].split(".")[0], kind["version"]]
            file = "-".join(filter(None, parts)).lower() + ".json"
            schema = {"$ref": f"#/definitions/{name}", "definitions": needed(name, definitions, {})}
            (directory / file).write_text(json.dumps(schema))


if __name__ == "__main__":
    main()
