"""Frames of pandas by URL: Parquet, CSV and compressed JSON, written and read."""

import pandas
from common import namespace, ran

with namespace() as place:
    frame = pandas.DataFrame({"n": range(50_000), "text": [f"row {n}" for n in range(50_000)]})
    frame.to_parquet("forebay:///frames/frame.parquet", storage_options=place.options)
    frame.to_csv("forebay:///frames/frame.csv", index=False, storage_options=place.options)
    frame.to_json("forebay:///frames/frame.json.gz", orient="records", lines=True, storage_options=place.options)
    assert sorted(path.name for path in (place.origin / "frames").iterdir()) == ["frame.csv", "frame.json.gz", "frame.parquet"]
    for read in [
        pandas.read_parquet("forebay:///frames/frame.parquet", storage_options=place.options),
        pandas.read_csv("forebay:///frames/frame.csv", storage_options=place.options),
        pandas.read_json("forebay:///frames/frame.json.gz", lines=True, storage_options=place.options),
    ]:
        assert read["n"].tolist() == frame["n"].tolist() and read["text"].tolist() == frame["text"].tolist()
    one = pandas.read_parquet("forebay:///frames/frame.parquet", columns=["n"], storage_options=place.options)
    assert list(one.columns) == ["n"]
    ran("pandas", "`read_` and `to_` of `parquet`, `csv` and `json` by URL")
