"""SQL of DuckDB on registered file systems: copies to files, scans by name and by pattern."""

import duckdb
import fsspec
from common import namespace, ran

with namespace() as place:
    database = duckdb.connect()
    database.register_filesystem(fsspec.filesystem("forebay", **place.options))
    for part in range(3):
        rows = f"select range as n, {part} as part from range(20000)"
        database.sql(f"copy ({rows}) to 'forebay:///tables/{part}.parquet' (format parquet)")
    database.sql("copy (select 1 as one, 'two' as two) to 'forebay:///tables/small.csv' (header)")
    assert len(list((place.origin / "tables").glob("*.parquet"))) == 3
    [(rows, total)] = database.sql("select count(*), sum(n) from 'forebay:///tables/*.parquet'").fetchall()
    assert (rows, total) == (60_000, 3 * sum(range(20_000)))
    assert database.sql("select n from 'forebay:///tables/1.parquet' where n > 19997").fetchall() == [(19_998,), (19_999,)]
    assert database.sql("select * from read_csv('forebay:///tables/small.csv')").fetchall() == [(1, "two")]
    ran("duckdb", "`register_filesystem`: `copy … to`, Parquet and CSV by name and by pattern")
