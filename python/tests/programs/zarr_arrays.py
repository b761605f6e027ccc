"""Arrays of Zarr in chunks: written, changed, read in part, and grouped."""

import numpy
import zarr
from common import namespace, ran

with namespace() as place:
    store = zarr.storage.FsspecStore.from_url("forebay:///arrays.zarr", storage_options=place.options)
    group = zarr.create_group(store=store)
    wanted = numpy.random.default_rng(1).random((500, 400))
    array = group.create_array("a", shape=wanted.shape, chunks=(100, 100), dtype=wanted.dtype)
    array[:] = wanted
    array[50:150, 10:20] = wanted[50:150, 10:20] = 0
    group.create_array("b/c", shape=(10,), chunks=(5,), dtype="i4")[:] = range(10)
    group.attrs["made by"] = "a test"
    again = zarr.open_group(zarr.storage.FsspecStore.from_url("forebay:///arrays.zarr", storage_options=place.options), mode="r")
    assert numpy.array_equal(again["a"][:], wanted) and numpy.array_equal(again["a"][120:130, 399], wanted[120:130, 399])
    assert again["b/c"][3:7].tolist() == [3, 4, 5, 6] and again.attrs["made by"] == "a test"
    assert sorted(name for name, _ in again.members()) == ["a", "b"]
    del group["b"]
    assert not (place.origin / "arrays.zarr" / "b" / "c").exists()
    ran("zarr", "`FsspecStore`: groups and chunked arrays, written, changed and read in part")
