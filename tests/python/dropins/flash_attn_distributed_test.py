# SPDX-License-Identifier: Apache-2.0
"""The drop-in's collectives, on two processes of this machine."""

import os
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
flash_attn = pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")

RANKS = 2


def work(rank, folder, paths):
    sys.path[:0] = [path for path in paths if path not in sys.path]
    import torch.distributed as dist
    from flash_attn.utils.distributed import all_gather, all_reduce, reduce_scatter
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    group = dist.group.WORLD
    x = (torch.arange(6.0).reshape(3, 2) + 10 * rank).requires_grad_()
    gathered = all_gather(x, group)
    weight = torch.arange(12.0).reshape(6, 2) * (rank + 1)
    (gathered * weight).sum().backward()
    wide = torch.ones(4, 1, requires_grad=True)
    scattered = reduce_scatter(wide * (rank + 1), group)
    (scattered * (rank + 5)).sum().backward()
    y = torch.full((2,), float(rank + 1), requires_grad=True)
    summed = all_reduce(y, group)
    summed.sum().backward()
    torch.save([t.detach() for t in (gathered, x.grad, scattered, wide.grad, summed, y, y.grad)], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(not os.environ.get("MICA_TEST_ALL"), reason="make test-all runs it")
def test_two_processes(tmp_path):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    paths = [str(pathlib.Path(__file__).parent), *sys.path]
    torch.multiprocessing.spawn(work, (str(tmp_path), paths), nprocs=RANKS)
    parts = [torch.arange(6.0).reshape(3, 2) + 10 * rank for rank in range(RANKS)]
    for rank in range(RANKS):
        gathered, x_grad, scattered, wide_grad, summed, y, y_grad = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(gathered, torch.cat(parts))
        assert torch.equal(x_grad, 3 * torch.arange(12.0).reshape(6, 2)[3 * rank : 3 * rank + 3])  # 1x + 2x the weight
        assert torch.equal(scattered, torch.full((2, 1), 3.0))
        assert torch.equal(wide_grad, torch.tensor([[5.0], [5.0], [6.0], [6.0]]) * (rank + 1))
        assert torch.equal(summed, torch.full((2,), 3.0)) and torch.equal(y, torch.full((2,), rank + 1.0))
        assert torch.equal(y_grad, torch.ones(2))
