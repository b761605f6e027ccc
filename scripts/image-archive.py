#!/usr/bin/env python3
"""Makes of an image's archive, as `buildah push … docker-archive:FROM` writes it, one that is the same at each build.

    image-archive.py FROM TO

buildah notes the container that it built in and the name of its host, which nobody needs and which are others each
time. The new archive has configuration, layers and manifest, which is what `docker load`, `podman load` and
`ctr images import` read.
"""

import hashlib
import io
import json
import sys
import tarfile


def anonymous(config):
    """The configuration without what tells of the build."""
    config.pop("container", None)
    config.pop("container_config", None)
    config["config"].pop("Hostname", None)
    return json.dumps(config, sort_keys=True, separators=(",", ":")).encode()


def add(archive, name, size, content):
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o444
    archive.addfile(member, content)


def add_bytes(archive, name, content):
    add(archive, name, len(content), io.BytesIO(content))


def main():
    source, target = sys.argv[1:]
    with tarfile.open(source) as old, tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as new:
        [image] = json.load(old.extractfile("manifest.json"))
        config = anonymous(json.load(old.extractfile(image["Config"])))
        for layer in image["Layers"]:
            member = old.getmember(layer)
            add(new, layer, member.size, old.extractfile(member))
        image["Config"] = f"{hashlib.sha256(config).hexdigest()}.json"
        add_bytes(new, image["Config"], config)
        add_bytes(new, "manifest.json", json.dumps([image], separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
