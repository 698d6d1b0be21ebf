# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine as the ranks of a gloo group."""

import datetime
import pathlib
import socket
import sys
import traceback

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SECONDS = 120  # the group's time limit


def _work(rank, size, folder, paths, threads, seconds, function, arguments):
    sys.path[:0] = [path for path in paths if path not in sys.path]
    import torch.distributed as dist
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=seconds))
    try:
        function(rank, size, *arguments)
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        dist.destroy_process_group()


def run(size, folder, function, *arguments, threads=1, seconds=SECONDS):
    """function(rank, size, *arguments) in so many processes; fails if one of them does."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    paths = [str(pathlib.Path(__file__).parent), *sys.path]
    torch.multiprocessing.spawn(_work, (size, str(folder), paths, threads, seconds, function, arguments), nprocs=size)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
