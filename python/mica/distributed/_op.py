# SPDX-License-Identifier: Apache-2.0
"""torch.ops.mica.ring: attention to keys that go round the ranks, as torch.compile sees it where the rows of DTensors are
divided. A group goes by its name, as in PyTorch's functional collectives; "" is a rank alone."""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .. import _tensors, _torch_ops
from . import _ring
from ._agree import agree
from ._compute import Call
from ._mail import Mail, mail_of


class Numbers(NamedTuple):
    """The op's arguments after its tensors. left, right: keys that a row sees before and after the diagonal."""
    group: str
    layout: str
    seqlen: int  # of the whole
    seqlen_k: int
    left: Optional[int]
    right: Optional[int]
    bottom_right: bool
    scale: float
    softcap: float
    deterministic: bool


_SCHEMA = ("str group, str layout, SymInt seqlen, SymInt seqlen_k, SymInt? left, SymInt? right, bool bottom_right, float scale, "
           "float softcap, bool deterministic")


def _prepared(q: Tensor, k: Tensor, v: Tensor, of: Numbers) -> Tuple[Optional[Mail], Any, Call]:
    from torch.distributed.distributed_c10d import _resolve_process_group

    from .functions import Options, _dense_route
    mail = mail_of(_resolve_process_group(of.group), q.device) if of.group else None
    if mail is not None:
        agree(mail, dict(of._replace(group="")._asdict(), function="ring", dtype=q.dtype, batch=q.shape[0],
                         heads=q.shape[2], key_heads=k.shape[2], dim=q.shape[3], dim_v=v.shape[3]))
    size, rank = (1, 0) if mail is None else (mail.size, mail.rank)
    options = Options(of.left, of.right, of.bottom_right, of.scale, of.softcap, 0.0)
    route = _dense_route(of.layout, of.seqlen, of.seqlen_k, size, rank, options, False,
                         _ring.steps_together(mail, q.shape[0]))
    call = Call(of.scale, of.softcap, 0.0, False, False, 0, q.shape[2], of.deterministic)
    return mail if size > 1 else None, route, call


def _forward(q: Tensor, k: Tensor, v: Tensor, *numbers: Any) -> Tuple[Tensor, Tensor]:
    q, k, v = (_tensors.dense(t) for t in (q, k, v))
    return _ring.forward(*_prepared(q, k, v, Numbers(*numbers)), q, k, v, None, None, None)


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *numbers: Any) -> Tuple[Tensor, Tensor]:
    return (q.new_empty((*q.shape[:-1], v.shape[-1])),
            q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32))


def _backward(d_o: Tensor, d_lse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
              *numbers: Any) -> Tuple[Tensor, Tensor, Tensor]:
    d_o, q, k, v, o = (_tensors.dense(t) for t in (d_o, q, k, v, o))
    made = _ring.backward(*_prepared(q, k, v, Numbers(*numbers)), d_o, d_lse, q, k, v, o, lse, None, None, (True,) * 3)
    dq, dk, dv = (torch.empty_like(like, memory_format=torch.contiguous_format).copy_(t)
                  for t, like in zip(made, (q, k, v)))
    return dq, dk, dv


def _backward_fake(d_o: Tensor, d_lse: Optional[Tensor], q: Tensor, k: Tensor, v: Tensor,
                   *rest: Any) -> Tuple[Tensor, ...]:
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))


def _keep(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.numbers = inputs[3:]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor]) -> Tuple[Any, ...]:
    q, k, v, o, lse = ctx.saved_tensors
    # Other ranks may need this one's share even where nothing comes in here: zeros go the same way.
    d_o = torch.zeros_like(o) if d_o is None else d_o
    return (*torch.ops.mica.ring_backward(d_o, d_lse, q, k, v, o, lse, *ctx.numbers), *(None for _ in ctx.numbers))


def _register() -> torch.library.Library:
    library = torch.library.Library("mica", "FRAGMENT")
    library.define(f"ring(Tensor q, Tensor k, Tensor v, {_SCHEMA}) -> (Tensor, Tensor)")
    library.define("ring_backward(Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
                   f"{_SCHEMA}) -> (Tensor, Tensor, Tensor)")
    for name, real, fake in (("ring", _forward, _forward_fake), ("ring_backward", _backward, _backward_fake)):
        for key in ("CPU", "CUDA"):
            library.impl(name, real, key)
        torch.library.register_fake(f"mica::{name}", fake, lib=library)
    torch.library.register_autograd("mica::ring", _differentiate, setup_context=_keep, lib=library)
    return library


_library = _register() if _torch_ops.AVAILABLE else None  # kept: the registrations end with it


def ring(q: Tensor, k: Tensor, v: Tensor, numbers: Numbers) -> Tuple[Tensor, Tensor]:
    """o and lse; differentiable."""
    return torch.ops.mica.ring(q, k, v, *numbers)  # type: ignore[no-any-return]


def ring_backward(d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
                  numbers: Numbers) -> Tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, contiguous."""
    return torch.ops.mica.ring_backward(d_o, None, q, k, v, o, lse, *numbers)  # type: ignore[no-any-return]
