# SPDX-License-Identifier: Apache-2.0
"""Types of mica.attention*: what comes back is q's kind of array, with the lse beside it where return_lse says so."""

from typing import Any, Literal, Optional, Sequence, Tuple, TypeVar, Union, overload

Array = Any
A = TypeVar("A")
Window = Optional[Tuple[Optional[int], Optional[int]]]
Causal = Literal[False, True, "bottom-right", "top-left"]
Diagonal = Optional[Literal["bottom-right", "top-left"]]
Lengths = Union[Array, Sequence[int]]

@overload
def attention(
    q: A, k: Array, v: Array, *, causal: Causal = ..., window: Window = ..., chunk: int = ..., mask:
    Optional[Array] = ..., bias: Optional[Array] = ..., scale: Optional[float] = ..., softcap: Optional[float] =
    ..., alibi: Optional[Array] = ..., sinks: Optional[Array] = ..., dropout: float = ..., return_lse:
    Literal[False] = ..., out: Optional[Array] = ..., diagonal: Diagonal = ..., num_splits: int = ...,
    batch_invariant: bool = ..., seed: Union[None, int, Array] = ...,
) -> A: ...
@overload
def attention(
    q: A, k: Array, v: Array, *, causal: Causal = ..., window: Window = ..., chunk: int = ..., mask:
    Optional[Array] = ..., bias: Optional[Array] = ..., scale: Optional[float] = ..., softcap: Optional[float] =
    ..., alibi: Optional[Array] = ..., sinks: Optional[Array] = ..., dropout: float = ..., return_lse:
    Literal[True], out: Optional[Array] = ..., diagonal: Diagonal = ..., num_splits: int = ..., batch_invariant:
    bool = ..., seed: Union[None, int, Array] = ...,
) -> Tuple[A, A]: ...
@overload
def attention(
    q: A, k: Array, v: Array, *, causal: Causal = ..., window: Window = ..., chunk: int = ..., mask:
    Optional[Array] = ..., bias: Optional[Array] = ..., scale: Optional[float] = ..., softcap: Optional[float] =
    ..., alibi: Optional[Array] = ..., sinks: Optional[Array] = ..., dropout: float = ..., return_lse: Any, out:
    Optional[Array] = ..., diagonal: Diagonal = ..., num_splits: int = ..., batch_invariant: bool = ..., seed:
    Union[None, int, Array] = ...,
) -> Any: ...
@overload
def attention_varlen(
    q: A, k: Array, v: Array, cu_seqlens_q: Lengths, cu_seqlens_k: Lengths, *, max_seqlen_q: Optional[int] =
    ..., max_seqlen_k: Optional[int] = ..., causal: Causal = ..., window: Window = ..., chunk: int = ..., mask:
    Optional[Array] = ..., bias: Optional[Array] = ..., scale: Optional[float] = ..., softcap: Optional[float] =
    ..., alibi: Optional[Array] = ..., sinks: Optional[Array] = ..., dropout: float = ..., return_lse:
    Literal[False] = ..., out: Optional[Array] = ..., diagonal: Diagonal = ..., num_splits: int = ...,
    batch_invariant: bool = ..., seed: Union[None, int, Array] = ..., seqused_q: Optional[Lengths] = ...,
    seqused_k: Optional[Lengths] = ..., block_table: Optional[Array] = ..., qv: Optional[Array] = ...,
) -> A: ...
@overload
def attention_varlen(
    q: A, k: Array, v: Array, cu_seqlens_q: Lengths, cu_seqlens_k: Lengths, *, max_seqlen_q: Optional[int] =
    ..., max_seqlen_k: Optional[int] = ..., causal: Causal = ..., window: Window = ..., chunk: int = ..., mask:
    Optional[Array] = ..., bias: Optional[Array] = ..., scale: Optional[float] = ..., softcap: Optional[float] =
    ..., alibi: Optional[Array] = ..., sinks: Optional[Array] = ..., dropout: float = ..., return_lse:
    Literal[True], out: Optional[Array] = ..., diagonal: Diagonal = ..., num_splits: int = ..., batch_invariant:
    bool = ..., seed: Union[None, int, Array] = ..., seqused_q: Optional[Lengths] = ..., seqused_k:
    Optional[Lengths] = ..., block_table: Optional[Array] = ..., qv: Optional[Array] = ...,
) -> Tuple[A, A]: ...
@overload
def attention_varlen(
    q: A, k: Array, v: Array, cu_seqlens_q: Lengths, cu_seqlens_k: Lengths, *, max_seqlen_q: Optional[int] =
    ..., max_seqlen_k: Optional[int] = ..., causal: Causal = ..., window: Window = ..., chunk: int = ..., mask:
    Optional[Array] = ..., bias: Optional[Array] = ..., scale: Optional[float] = ..., softcap: Optional[float] =
    ..., alibi: Optional[Array] = ..., sinks: Optional[Array] = ..., dropout: float = ..., return_lse: Any, out:
    Optional[Array] = ..., diagonal: Diagonal = ..., num_splits: int = ..., batch_invariant: bool = ..., seed:
    Union[None, int, Array] = ..., seqused_q: Optional[Lengths] = ..., seqused_k: Optional[Lengths] = ...,
    block_table: Optional[Array] = ..., qv: Optional[Array] = ...,
) -> Any: ...
@overload
def attention_with_cache(
    q: A, k_cache: Array, v_cache: Array, *, k: Optional[Array] = ..., v: Optional[Array] = ..., cache_seqlens:
    Union[None, int, Lengths] = ..., block_table: Optional[Array] = ..., cache_batch_idx: Optional[Array] = ...,
    cache_leftpad: Optional[Array] = ..., rotary_cos: Optional[Array] = ..., rotary_sin: Optional[Array] = ...,
    rotary_interleaved: bool = ..., causal: Causal = ..., window: Window = ..., chunk: int = ..., mask:
    Optional[Array] = ..., bias: Optional[Array] = ..., scale: Optional[float] = ..., softcap: Optional[float] =
    ..., alibi: Optional[Array] = ..., sinks: Optional[Array] = ..., return_lse: Literal[False] = ..., out:
    Optional[Array] = ..., diagonal: Diagonal = ..., num_splits: int = ..., batch_invariant: bool = ...,
    max_seqlen_k: Optional[int] = ..., tree: Optional[Array] = ..., k_prefix:
    Optional[Array] = ..., v_prefix: Optional[Array] = ..., qv: Optional[Array] = ...,
) -> A: ...
@overload
def attention_with_cache(
    q: A, k_cache: Array, v_cache: Array, *, k: Optional[Array] = ..., v: Optional[Array] = ..., cache_seqlens:
    Union[None, int, Lengths] = ..., block_table: Optional[Array] = ..., cache_batch_idx: Optional[Array] = ...,
    cache_leftpad: Optional[Array] = ..., rotary_cos: Optional[Array] = ..., rotary_sin: Optional[Array] = ...,
    rotary_interleaved: bool = ..., causal: Causal = ..., window: Window = ..., chunk: int = ..., mask:
    Optional[Array] = ..., bias: Optional[Array] = ..., scale: Optional[float] = ..., softcap: Optional[float] =
    ..., alibi: Optional[Array] = ..., sinks: Optional[Array] = ..., return_lse: Literal[True], out:
    Optional[Array] = ..., diagonal: Diagonal = ..., num_splits: int = ..., batch_invariant: bool = ...,
    max_seqlen_k: Optional[int] = ..., tree: Optional[Array] = ..., k_prefix:
    Optional[Array] = ..., v_prefix: Optional[Array] = ..., qv: Optional[Array] = ...,
) -> Tuple[A, A]: ...
@overload
def attention_with_cache(
    q: A, k_cache: Array, v_cache: Array, *, k: Optional[Array] = ..., v: Optional[Array] = ..., cache_seqlens:
    Union[None, int, Lengths] = ..., block_table: Optional[Array] = ..., cache_batch_idx: Optional[Array] = ...,
    cache_leftpad: Optional[Array] = ..., rotary_cos: Optional[Array] = ..., rotary_sin: Optional[Array] = ...,
    rotary_interleaved: bool = ..., causal: Causal = ..., window: Window = ..., chunk: int = ..., mask:
    Optional[Array] = ..., bias: Optional[Array] = ..., scale: Optional[float] = ..., softcap: Optional[float] =
    ..., alibi: Optional[Array] = ..., sinks: Optional[Array] = ..., return_lse: Any, out: Optional[Array] =
    ..., diagonal: Diagonal = ..., num_splits: int = ..., batch_invariant: bool = ..., max_seqlen_k:
    Optional[int] = ..., tree: Optional[Array] = ..., k_prefix:
    Optional[Array] = ..., v_prefix: Optional[Array] = ..., qv: Optional[Array] = ...,
) -> Any: ...
