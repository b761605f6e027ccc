"""fastsafetensors itself, with `forebay.fastsafetensors`: into memory of the host, and of a GPU where there is one."""

import fastsafetensors
import forebay
import forebay.fastsafetensors
import torch
from common import namespace, ran
from safetensors.torch import save_file

with namespace() as place:
    torch.manual_seed(1)
    wanted = {f"layer.{number}": torch.rand(500, 100 * (number + 1)) for number in range(6)}
    wanted |= {"half": torch.rand(33).to(torch.bfloat16), "whole": torch.arange(1000), "empty": torch.zeros(0, 3)}
    names = list(wanted)
    for part in range(2):
        save_file({name: wanted[name] for name in names[part::2]}, place.origin / f"{part}.safetensors")
    devices = ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]
    with forebay.Client(**place.options) as client:
        for device in devices:
            loader = forebay.fastsafetensors.loader(client, device=device)
            loader.add_filenames({0: ["/0.safetensors", "/1.safetensors"]})
            files = loader.copy_files_to_device()
            found = {name: files.get_tensor(name) for name in loader.get_keys()}
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[name].cpu(), tensor) for name, tensor in wanted.items())
            # Tensors outlive what they were loaded by.
            kept = found.pop("layer.5")
            found.clear()
            files.close()
            loader.close()
            assert torch.equal(kept.cpu(), wanted["layer.5"])
            del kept
            assert fastsafetensors.live_allocation_count() == 0, "memory is left behind"
        # Converted while it is loaded.
        loader = forebay.fastsafetensors.loader(client)
        loader.add_filenames({0: ["/0.safetensors"]})
        files = loader.copy_files_to_device(dtype=fastsafetensors.st_types.DType.F16)
        assert torch.equal(files.get_tensor("layer.0"), wanted["layer.0"].to(torch.float16))
        files.close()
        loader.close()
    where = "the host" if len(devices) == 1 else "the host and of a GPU"
    ran("fastsafetensors", f"`forebay.fastsafetensors.loader`: into memory of {where}, converted, tensors that outlive it")
