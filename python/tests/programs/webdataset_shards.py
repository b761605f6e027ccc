"""Shards of WebDataset, opened by a scheme of `gopen`."""

import fsspec
import webdataset
from common import namespace, ran
from webdataset.gopen import gopen_schemes

with namespace() as place:

    def open_forebay(url, mode="rb", bufsize=8192, **_):
        return fsspec.open(url, mode, **place.options).open()

    gopen_schemes["forebay"] = open_forebay
    with webdataset.ShardWriter("forebay:///shards/%06d.tar", maxcount=50, opener=lambda url: open_forebay(url, "wb")) as shards:
        for number in range(200):
            shards.write({"__key__": f"{number:06}", "txt": f"sample {number}", "bin": bytes([number]) * 1000})
    assert len(list((place.origin / "shards").glob("*.tar"))) == 4
    read = webdataset.WebDataset("forebay:///shards/{000000..000003}.tar", shardshuffle=False).decode().to_tuple("txt", "bin")
    assert [(text, data[:1]) for text, data in read] == [(f"sample {number}", bytes([number])) for number in range(200)]
    ran("webdataset", "`gopen_schemes`: shards written with `ShardWriter` and read with `WebDataset`")
