# SPDX-License-Identifier: Apache-2.0
"""Transformers' attn_implementation="flash_attention_2", and "flash_attention_3" of that drop-in, with fewer waits for the GPU.

Transformers' own function for those names asks in every layer whether the positions of one sequence's prompt are those of
packed sequences, and counts the tokens of a static cache's mask twice: each waits for the GPU. The function here, registered by
Transformers' AttentionInterface when Transformers first loads the drop-in, asks the same once in a forward pass; where the
answer is that one sequence follows its positions, or that the mask hides nothing, it calls flash_attn_func with what
Transformers would have called it with. Everything else, and every argument that is not known here, goes to Transformers' own
function (`transformers_function()`). MICA_TRANSFORMERS=off in the environment leaves that one in its place.
"""
import inspect
import os
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from mica._tracing import dispatch_modes, is_dynamo_tracing, is_jit_tracing, is_transformed
from torch import Tensor

from .flash_attn_interface import flash_attn_func

# What Transformers' functions may take, in the versions that were read (4.57 to 5.23). One with more is left alone.
_FORWARD = frozenset((
    "module", "query", "key", "value", "attention_mask", "dropout", "scaling", "sliding_window", "softcap", "is_causal", "s_aux",
    "cache", "kwargs"))
_INNER = frozenset((
    "query_states", "key_states", "value_states", "attention_mask", "query_length", "is_causal", "dropout", "position_ids",
    "softmax_scale", "sliding_window", "use_top_left_mask", "softcap", "deterministic", "cu_seq_lens_q", "cu_seq_lens_k",
    "max_length_q", "max_length_k", "target_dtype", "attn_implementation", "implementation", "block_table", "k_cache", "v_cache",
    "kwargs"))
# Arguments that Transformers hands on to its flash function, which makes nothing of them.
_SAY_NOTHING = frozenset((
    "position_ids", "cache_position", "use_cache", "return_dict", "output_hidden_states", "output_router_logits",
    "num_items_in_batch", "layer_idx", "logits_to_keep"))
_HALVES = (torch.bfloat16, torch.float16)


def _parts_now(flash: Any, utils: Any) -> Tuple[Any, ...]:
    """What Transformers' function is made of. Others put functions of their own in these places (sequences over several GPUs,
    packed samples), which must be called then."""
    return flash._flash_attention_forward, utils._flash_attention_forward, utils._upad_input, utils._get_unpad_data


class _Answer:
    """To a question about a tensor. version: None of an inference tensor, which counts none; layer: the last one told."""
    __slots__ = ("tensor", "version", "layer", "is_yes")

    def __init__(self, tensor: Tensor, layer: int, is_yes: bool) -> None:
        self.tensor, self.layer, self.is_yes = weakref.ref(tensor), layer, is_yes
        self.version: Optional[int] = None if tensor.is_inference() else tensor._version


class _Memory(threading.local):
    """By the tensor's id."""

    def __init__(self) -> None:
        self.positions: Dict[int, _Answer] = {}
        self.masks: Dict[int, _Answer] = {}


_memory = _Memory()


def _is_one_sequence(position_ids: Tensor) -> bool:
    return not bool(sys.modules["transformers.modeling_flash_attention_utils"]._is_packed_sequence(position_ids, 1))


def _hides_nothing(mask: Tensor) -> bool:
    return bool(mask.all())


def _once(question: Callable[[Tensor], bool], answers: Dict[int, _Answer], tensor: Tensor, layer: Any) -> bool:
    """question(tensor), asked again when the tensor is another or has changed, and for a layer that is no later than the last
    one told yes: a forward pass begins there, before which the tensor may have changed unseen (.data, an inference tensor, a
    kernel of the user's own). No, which makes the call go Transformers' way, may be remembered for longer."""
    if type(layer) is not int:
        layer = -1  # never later than another
    key = id(tensor)
    known = answers.get(key)
    if known is not None and known.tensor() is tensor and (known.version is None or known.version == tensor._version) and (
            not known.is_yes or layer > known.layer):
        known.layer = layer
        return known.is_yes
    answers.pop(key, None)
    if (type(tensor) is not Tensor or dispatch_modes() or is_jit_tracing() or is_transformed() or
            tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    is_yes = question(tensor)
    if len(answers) >= 8:
        answers.clear()
    answers[key] = _Answer(tensor, layer, is_yes)
    return is_yes


def _visible_keys(module: Any, batch: int, rows: int, keys: int, mask: Optional[Tensor], position_ids: Any) -> int:
    """How many keys, from the first, a call attends to that is neither packed nor has padding; 0 of any other."""
    if mask is None:
        if batch != 1 or position_ids is None or position_ids.numel() == 1:
            return keys
        return keys if _once(_is_one_sequence, _memory.positions, position_ids, getattr(module, "layer_idx", None)) else 0
    if mask.dtype is not torch.bool or mask.dim() != 2 or mask.shape[0] != batch:
        return 0
    named = mask.shape[1]  # a static cache has more keys than the mask names, and those behind hold nothing yet
    if not rows <= named <= keys:
        return 0
    return named if _once(_hides_nothing, _memory.masks, mask, getattr(module, "layer_idx", None)) else 0


def _is_known(registered: Any, flash: Any, utils: Any) -> bool:
    """Whether the functions are Transformers' own, nobody else's, and take no argument that is not known here."""
    parts = _parts_now(flash, utils)
    return (registered is flash.flash_attention_forward and flash._use_top_left_mask is False and hasattr(utils, "_flash_fn") and
            all(part.__module__ == utils.__name__ for part in parts) and parts[0] is parts[1] and
            _FORWARD.issuperset(inspect.signature(registered).parameters) and
            _INNER.issuperset(inspect.signature(parts[0]).parameters) and
            list(inspect.signature(utils._is_packed_sequence).parameters) == ["position_ids", "batch_size"])


class Registration:
    """Under a name of Transformers', around the flash_attn_func that Transformers loads for it. options: arguments of that
    function which Transformers does not give."""

    def __init__(self, name: str, flash_function: Callable[..., Any], **options: Any) -> None:
        self._name, self._flash_function, self._options = name, flash_function, options
        self._has_dropout = "dropout_p" in inspect.signature(flash_function).parameters
        self.function: Callable[..., Any] = self._forward  # one object, which can be found again
        self._theirs: Optional[Callable[..., Any]] = None
        self._utils: Any = None
        self._flash: Any = None
        self._parts: Tuple[Any, ...] = ()

    def attach(self) -> bool:
        """Registers `function` where Transformers is loaded, is a version that is known here, and has its own under the name;
        whether it is registered now."""
        if os.environ.get("MICA_TRANSFORMERS") == "off":
            return False
        modeling: Any = sys.modules.get("transformers.modeling_utils")
        utils: Any = sys.modules.get("transformers.modeling_flash_attention_utils")
        flash: Any = sys.modules.get("transformers.integrations.flash_attention")
        try:
            registered = modeling.AttentionInterface()[self._name]
            if registered is self.function:
                return True
            is_known = _is_known(registered, flash, utils)
        except (AttributeError, KeyError, TypeError, ValueError):  # not loaded, or not what it was
            return False
        if is_known:
            self._theirs, self._utils, self._flash, self._parts = registered, utils, flash, _parts_now(flash, utils)
            modeling.AttentionInterface.register(self._name, self.function)
        return is_known

    def transformers_function(self) -> Optional[Callable[..., Any]]:
        """Transformers' own, if `function` is registered in its place."""
        modeling: Any = sys.modules.get("transformers.modeling_utils")
        is_attached = modeling is not None and modeling.AttentionInterface()[self._name] is self.function
        return self._theirs if is_attached else None

    def _forward(
        self,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Optional[Tensor],
        dropout: float = 0.0,
        scaling: Optional[float] = None,
        sliding_window: Optional[int] = None,
        softcap: Optional[float] = None,
        is_causal: Optional[bool] = None,
        **kwargs: Any,
    ) -> Tuple[Tensor, None]:
        """query (batch, heads, rows, dim), key and value (batch, key heads, keys, dim) -> ((batch, rows, heads, dim), None)."""
        if not is_dynamo_tracing() and self._utils._flash_fn is self._flash_function and (
                _parts_now(self._flash, self._utils) == self._parts) and query.dtype in _HALVES and (
                    not dropout or self._has_dropout) and (kwargs.keys() <= _SAY_NOTHING or all(
                        kwargs[name] is None for name in kwargs.keys() - _SAY_NOTHING)):
            batch, heads, rows, dim = query.shape
            held = key.shape[2]
            keys = 0
            if batch and heads and rows and 0 < dim == value.shape[-1]:
                keys = _visible_keys(module, batch, rows, held, attention_mask, kwargs.get("position_ids"))
            if keys:
                # Transformers compares the window with all the keys of a static cache: one that is wider than those that are
                # visible hides none of them.
                window = (-1, -1)
                if sliding_window is not None and keys > sliding_window:
                    window = (sliding_window - 1, sliding_window - 1)
                if keys != held:
                    key, value = key[:, :, :keys], value[:, :, :keys]
                options = {**self._options, "dropout_p": dropout} if dropout else self._options
                return self._flash_function(
                    query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), softmax_scale=scaling,
                    causal=module.is_causal if is_causal is None else is_causal, window_size=window,
                    softcap=0.0 if softcap is None else softcap,
                    deterministic=torch.is_grad_enabled() and os.environ.get("FLASH_ATTENTION_DETERMINISTIC") == "1",
                    **options), None
        if is_causal is not None:
            kwargs["is_causal"] = is_causal
        assert self._theirs is not None
        return self._theirs(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling,
                            sliding_window=sliding_window, softcap=softcap, **kwargs)


registration = Registration("flash_attention_2", flash_attn_func)


def transformers_function() -> Optional[Callable[..., Any]]:
    """To have it back:
    transformers.AttentionInterface.register("flash_attention_2", flash_attn._transformers.transformers_function())"""
    return registration.transformers_function()
