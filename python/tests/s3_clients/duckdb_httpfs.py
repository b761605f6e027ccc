"""DuckDB's extension `httpfs`, from PyPI and not from DuckDB's own repository."""

from __future__ import annotations

from pathlib import Path

import duckdb
import duckdb_extension_httpfs
from common import ran
from endpoint import BUCKET, endpoint
from suite import same, until

with endpoint() as place:
    database = duckdb.connect(config={"extension_directory": str(place.scratch / "extensions")})
    [extension] = Path(duckdb_extension_httpfs.__file__).parent.rglob("httpfs.duckdb_extension")
    database.sql(f"load '{extension}'")
    access, secret = place.key
    keys = f"key_id '{access}', secret '{secret}', region 'us-east-1'"
    database.sql(f"create secret (type s3, {keys}, endpoint '{place.host}', use_ssl false, url_style 'path')")
    (place.origin / "tables").mkdir()
    for part in range(3):
        rows = f"select range as n, {part} as part from range(20000)"
        database.sql(f"copy ({rows}) to '{place.origin}/tables/{part}.parquet' (format parquet)")
    (place.origin / "tables/small.csv").write_text("one,two\n1,two\n")

    def total() -> tuple[int, int]:
        [(rows, n)] = database.sql(f"select count(*), sum(n) from 's3://{BUCKET}/tables/*.parquet'").fetchall()
        return int(rows), int(n)

    before = (60_000, 3 * sum(range(20_000)))
    same(total(), before)
    found = database.sql(f"select n from 's3://{BUCKET}/tables/1.parquet' where n > 19997").fetchall()
    same(found, [(19_998,), (19_999,)])
    same(database.sql(f"select * from read_csv('s3://{BUCKET}/tables/small.csv')").fetchall(), [(1, "two")])
    # One that is replaced.
    database.sql(f"copy (select range as n, 0 as part from range(10)) to '{place.scratch}/new.parquet' (format parquet)")
    (place.scratch / "new.parquet").rename(place.origin / "tables/0.parquet")
    until(total, (40_010, 2 * sum(range(20_000)) + sum(range(10))), before)
    # Written, in parts.
    database.sql(f"copy (select range as n from range(3000000)) to 's3://{BUCKET}/written/large.parquet' (compression uncompressed)")
    [(rows,)] = database.sql(f"select count(*) from '{place.origin}/written/large.parquet'").fetchall()
    same(rows, 3_000_000)
    ran("duckdb", "`httpfs`: Parquet and CSV by name and by pattern, files that are replaced, `copy … to`")
