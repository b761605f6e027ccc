"""Frames of Dask: read by several processes and threads, by a pattern, and written in parts."""

import dask
import dask.dataframe
import pandas
from common import namespace, ran


def main() -> None:
    with namespace() as place:
        for part in range(6):
            rows = range(part * 1000, (part + 1) * 1000)
            frame = pandas.DataFrame({"n": rows, "odd": [row % 2 for row in rows]})
            frame.to_parquet(place.origin / f"{part}.parquet")
            frame.to_csv(place.origin / f"{part}.csv", index=False)
        for scheduler in ("threads", "processes"):
            with dask.config.set(scheduler=scheduler, num_workers=2):
                read = dask.dataframe.read_parquet("forebay:///*.parquet", storage_options=place.options)
                assert len(read) == 6000 and read["n"].sum().compute() == sum(range(6000))
                csv = dask.dataframe.read_csv("forebay:///*.csv", storage_options=place.options, blocksize=4096)
                assert csv[csv["odd"] == 1]["n"].sum().compute() == sum(range(1, 6000, 2))
                doubled = read.assign(n=read["n"] * 2)
                doubled.to_parquet(f"forebay:///doubled-{scheduler}", storage_options=place.options)
            written = pandas.read_parquet(place.origin / f"doubled-{scheduler}")
            assert written["n"].sum() == 2 * sum(range(6000))
        ran("dask", "`dataframe`: `read_parquet` and `read_csv` by a pattern, `to_parquet`; by threads and by processes")


# Processes that are spawned import this.
if __name__ == "__main__":
    main()
