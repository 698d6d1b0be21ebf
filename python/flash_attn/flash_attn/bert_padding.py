# SPDX-License-Identifier: Apache-2.0
"""Between a padded batch (batch, seqlen, ...) and its valid tokens laid end to end (total, ...).

The same names, arguments and results as upstream's module. Plain torch: every function is differentiable and traceable.
"""
from typing import Optional, Tuple

import torch
from torch import Tensor

from . import _transformers

try:  # upstream's module has these two in its namespace, and other projects import them from here
    from einops import rearrange, repeat  # noqa: F401
except ImportError:
    pass


class _Apply:
    """A function that can also be called as Class.apply, as upstream's autograd functions are."""

    @classmethod
    def apply(cls, *args):
        return cls.compute(*args)


class IndexFirstAxis(_Apply):
    @staticmethod
    def compute(input: Tensor, indices: Tensor) -> Tensor:
        """Rows of input: (rows, ...), (n,) -> (n, ...)."""
        return input.index_select(0, indices.to(torch.long))


class IndexPutFirstAxis(_Apply):
    @staticmethod
    def compute(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
        """The inverse: (n, ...), (n,) -> (first_axis_dim, ...), zero where no index points."""
        rows = values.new_zeros((first_axis_dim,) + tuple(values.shape[1:]))
        return rows.index_copy_(0, indices.to(torch.long), values)


class IndexFirstAxisResidual(_Apply):
    @staticmethod
    def compute(input: Tensor, indices: Tensor) -> Tuple[Tensor, Tensor]:
        """The rows, and the input itself for a residual branch."""
        return IndexFirstAxis.compute(input, indices), input


index_first_axis = IndexFirstAxis.apply
index_put_first_axis = IndexPutFirstAxis.apply
index_first_axis_residual = IndexFirstAxisResidual.apply


def _cumulative(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))


def _longest(lengths: Tensor) -> int:
    return int(lengths.max()) if lengths.numel() else 0


def _valid_positions(mask: Tensor) -> Tensor:
    return torch.nonzero(mask.reshape(-1)).reshape(-1)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Optional[Tensor] = None):
    """Keeps the tokens that a (batch, seqlen) mask marks.

    unused_mask marks tokens that keep their place but are not to be attended to. Returns five values: the tokens
    (total, ...), their positions in the flattened batch, cu_seqlens int32 (batch + 1,), the longest length as an int
    (which waits for the device) and seqused int32 (batch,): how many tokens attention_mask alone marks in each
    sequence.
    """
    seqused = attention_mask.sum(dim=-1, dtype=torch.int32)
    kept, lengths = attention_mask, seqused
    if unused_mask is not None:
        kept = attention_mask + unused_mask
        lengths = kept.sum(dim=-1, dtype=torch.int32)
    positions = _valid_positions(kept)
    tokens = index_first_axis(hidden_states.flatten(0, 1), positions)
    return tokens, positions, _cumulative(lengths), _longest(lengths), seqused


def unpad_input_for_concatenated_sequences(hidden_states: Tensor, attention_mask_in_length: Tensor):
    """For rows in which several short sequences stand one after the other.

    attention_mask_in_length (batch, seqlen) lists the lengths of the sequences of each row, then zeros. Returns the
    tokens, their positions, cu_seqlens with one entry per short sequence, and the longest length.
    """
    used = attention_mask_in_length.sum(dim=-1)
    columns = torch.arange(attention_mask_in_length.shape[-1], device=used.device, dtype=used.dtype)
    positions = _valid_positions(columns < used.unsqueeze(1))
    flat = attention_mask_in_length.reshape(-1)
    lengths = flat[_valid_positions(flat)]
    return index_first_axis(hidden_states.flatten(0, 1), positions), positions, _cumulative(lengths), _longest(lengths)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Puts the tokens (total, ...) back into (batch, seqlen, ...), zeros elsewhere. A decoding step's are not copied."""
    # Transformers takes its positions from cu_seqlens[:-1] there: of one row in every sequence they are in order.
    base = indices._base if seqlen == 1 and indices.dtype is torch.int32 else None
    if (base is not None and base.shape == (batch + 1,) and indices.shape[0] == batch == hidden_states.shape[0] and
            not (hidden_states.requires_grad and torch.is_grad_enabled())):
        return hidden_states.unsqueeze(1)
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


# Transformers imports this module when it first loads flash_attn, and hardly anybody else does.
_transformers.registration.attach()
