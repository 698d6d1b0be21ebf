# SPDX-License-Identifier: Apache-2.0
"""Collectives over the first axis, with gradients. The *_raw ones give (result, handle), the handle None unless async_op."""
from typing import Any, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor


def all_gather_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> Tuple[Tensor, Optional[Any]]:
    """(n, ...) of every rank -> (ranks * n, ...)."""
    rows = dist.get_world_size(process_group) * input_.shape[0]
    output = input_.new_empty((rows, *input_.shape[1:]))
    handle = dist.all_gather_into_tensor(output, input_.contiguous(), group=process_group, async_op=async_op)
    return output, handle


def reduce_scatter_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> Tuple[Tensor, Optional[Any]]:
    """(ranks * n, ...) -> (n, ...): the sum over the ranks, of which each keeps its part."""
    ranks = dist.get_world_size(process_group)
    if input_.shape[0] % ranks:
        raise ValueError(f"input_.shape[0] is {input_.shape[0]}, want a multiple of {ranks} (the ranks)")
    output = input_.new_empty((input_.shape[0] // ranks, *input_.shape[1:]))
    handle = dist.reduce_scatter_tensor(output, input_.contiguous(), group=process_group, async_op=async_op)
    return output, handle


def all_reduce_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> Tuple[Tensor, Optional[Any]]:
    """The sum over the ranks; in place where input_ is contiguous."""
    input_ = input_.contiguous()
    return input_, dist.all_reduce(input_, group=process_group, async_op=async_op)


class AllGatherFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_: Tensor, process_group: Any) -> Tensor:
        ctx.process_group = process_group
        return all_gather_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        return reduce_scatter_raw(grad_output, ctx.process_group)[0], None


class ReduceScatterFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input_: Tensor, process_group: Any) -> Tensor:
        ctx.process_group = process_group
        return reduce_scatter_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        return all_gather_raw(grad_output, ctx.process_group)[0], None


class AllReduceFunc(torch.autograd.Function):
    """NOTE: as upstream, the gradient passes as it is: every rank is taken to compute the same loss from the sum."""

    @staticmethod
    def forward(ctx, input_: Tensor, process_group: Any) -> Tensor:
        return all_reduce_raw(input_.clone(), process_group)[0]

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        return grad_output, None


all_gather = AllGatherFunc.apply
reduce_scatter = ReduceScatterFunc.apply
all_reduce = AllReduceFunc.apply
