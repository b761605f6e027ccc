"""PyTorch's `DataLoader`: processes that are forked and spawned read samples by `forebay://` and by a client, in an order that a sampler
announces; and batches that a process with an open file and a view of its parent's reads."""

import random

import forebay
import forebay.torch
import fsspec
import torch
from common import namespace, ran
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

SAMPLES, LENGTH = 200, 10_000


def content(number):
    return random.Random(number).randbytes(LENGTH)


class OfFsspec(Dataset):
    """A file for each sample, by a file system that comes to the processes with the dataset."""

    def __init__(self, options):
        self.fs = fsspec.filesystem("forebay", **options)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        return number, torch.frombuffer(bytearray(self.fs.cat_file(f"/samples/{number:04}")), dtype=torch.uint8)


class OfClient(Dataset):
    """All samples in one file, which comes to the processes open."""

    def __init__(self, client):
        self.client = client
        self.file = client.open("/all")

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        tensor = torch.empty(LENGTH, dtype=torch.uint8)
        read = self.file.readinto((tensor.data_ptr(), LENGTH), number * LENGTH)
        assert read == LENGTH
        return number, tensor


def check(loader):
    """Each sample once, and its bytes."""
    seen = []
    for numbers, tensors in loader:
        numbers = numbers.tolist() if isinstance(numbers, torch.Tensor) else [numbers]
        for number, tensor in zip(numbers, tensors.reshape(-1, LENGTH), strict=True):
            assert tensor.numpy().tobytes() == content(number), f"sample {number} has other bytes"
            seen.append(number)
    assert sorted(seen) == list(range(SAMPLES))
    return seen


def main():
    with namespace() as place:
        (place.origin / "samples").mkdir()
        for number in range(SAMPLES):
            (place.origin / f"samples/{number:04}").write_bytes(content(number))
        (place.origin / "all").write_bytes(b"".join(map(content, range(SAMPLES))))
        of_fsspec = OfFsspec(place.options)
        assert of_fsspec[3][1].numpy().tobytes() == content(3)
        with forebay.Client(**place.options) as client:
            of_client = OfClient(client)
            assert of_client[3][0] == 3
            for method in ("fork", "spawn", "forkserver"):
                for dataset in (of_fsspec, of_client):
                    check(DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, multiprocessing_context=method))

            def of_file(number):
                return of_client.file, number * LENGTH, LENGTH

            # With an order that is announced, one by one and in batches: it is the order in which they come.
            for workers in (0, 2):
                drawn = list(RandomSampler(of_client))
                sampler = forebay.torch.AnnouncingSampler(drawn, client, lambda number: ("/all", number * LENGTH, LENGTH), to="here")
                assert check(DataLoader(of_client, batch_size=None, sampler=sampler, num_workers=workers)) == drawn
                batches = BatchSampler(drawn, 8, drop_last=False)
                sampler = forebay.torch.AnnouncingSampler(batches, client, of_file, to="here")
                assert check(DataLoader(of_client, batch_sampler=sampler, num_workers=workers)) == drawn
    does = "`DataLoader` (fork, spawn, forkserver) on `forebay://` and on a client's open file; `AnnouncingSampler` of samples, of batches"
    ran("torch (data)", does, torch.__version__.split("+")[0])


# Processes that are spawned import this.
if __name__ == "__main__":
    main()
