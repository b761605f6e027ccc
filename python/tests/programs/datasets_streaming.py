"""Datasets of Hugging Face, streamed from Parquet files by a pattern, and saved."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

import datasets  # noqa: E402
import pyarrow  # noqa: E402
import pyarrow.parquet as parquet  # noqa: E402
from common import namespace, ran  # noqa: E402

with namespace() as place:
    (place.origin / "train").mkdir()
    for part in range(4):
        rows = range(part * 1000, (part + 1) * 1000)
        parquet.write_table(pyarrow.table({"n": list(rows)}), place.origin / "train" / f"{part}.parquet", row_group_size=100)
    files = "forebay:///train/*.parquet"
    streamed = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, storage_options=place.options)
    assert sorted(row["n"] for row in streamed) == list(range(4000))
    assert [row["n"] for row in streamed.skip(3990)] == list(range(3990, 4000))
    small = datasets.Dataset.from_dict({"n": [1, 2, 3]})
    small.save_to_disk("forebay:///saved", storage_options=place.options)
    assert datasets.load_from_disk("forebay:///saved", storage_options=place.options)["n"][:] == [1, 2, 3]
    ran("datasets", "`load_dataset(streaming=True)` of Parquet by a pattern, `save_to_disk`, `load_from_disk`")
