"""Data sets of xarray in Zarr: written by URL, appended to, and read in part, chunk by chunk."""

import numpy
import pandas
import xarray
from common import namespace, ran

URL = "forebay:///climate.zarr"

with namespace() as place:
    draw = numpy.random.default_rng(1)
    times = pandas.date_range("2026-01-01", periods=100)
    values = draw.random((100, 40, 50))
    wanted = xarray.Dataset(
        {"temperature": (("time", "y", "x"), values)}, coords={"time": times, "y": range(40)}, attrs={"source": "a test"}
    )
    first = wanted.isel(time=slice(0, 60))
    first.to_zarr(URL, storage_options=place.options, encoding={"temperature": {"chunks": (20, 20, 50)}}, consolidated=False)
    wanted.isel(time=slice(60, 100)).to_zarr(URL, storage_options=place.options, append_dim="time", consolidated=False)
    assert (place.origin / "climate.zarr").is_dir()
    found = xarray.open_zarr(URL, storage_options=place.options, chunks=None, consolidated=False)
    assert found.attrs == {"source": "a test"} and found.sizes == {"time": 100, "y": 40, "x": 50}
    part = found["temperature"].sel(time=slice("2026-02-10", "2026-03-10")).isel(y=[3, 30])
    assert numpy.array_equal(part.values, wanted["temperature"].sel(time=slice("2026-02-10", "2026-03-10")).isel(y=[3, 30]).values)
    xarray.testing.assert_identical(found.load(), wanted)
    ran("xarray", "`to_zarr` and `open_zarr` by URL: written, appended to, read in part")
