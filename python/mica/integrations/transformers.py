# SPDX-License-Identifier: Apache-2.0
"""Mica as an attention implementation of Hugging Face Transformers (4.57 and later).

    import mica.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="mica")

Causal masks, sliding windows, softcap, sinks and position biases run in the kernel. A padding mask goes in as (batch,
1, 1, keys); only what is neither (a static cache, packed rows without cu_seq_lens, chunks, image tokens) becomes a
mask of all pairs, as for sdpa. An argument that would change the result and is not known here is refused by its name,
and so is a model that Transformers refuses sdpa for. NOTE: the name must not contain "flash": Transformers would take
it for an implementation of its own.
"""
import functools
import importlib
import inspect
import re
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from transformers import masking_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface, PreTrainedModel

import mica
from mica.errors import Unsupported
from mica.integrations._meanings import finite_bias

try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:  # before 5 what is to be captured is in the arguments
    _active_collector = None

NAME = "mica"
_names = {NAME}
# Arguments that travel through the attention function and say nothing of which pairs attend, or how.
_SAY_NOTHING = frozenset((
    "position_ids", "cache_position", "use_cache", "return_dict", "output_hidden_states", "output_router_logits",
    "num_items_in_batch", "layer_idx", "max_length_q", "max_length_k", "deterministic", "seq_idx", "logits_to_keep",
    "input_ids", "vision_feature_layer", "vision_feature_select_strategy"))
# A padding mask of our own, which causal mask and window go with, has this type: one of the model's own says it all.
_PADDING = torch.uint8
# One that a window to both sides goes with has this type: window + 1 where a key is no padding, else 0. What it says stands
# in its attribute `both_sides` too, which need not be waited for, but which a copy (to another device) does not have.
_BOTH_SIDES = torch.int16
_WIDEST = 2**15 - 2
# As eager asks for: rows that see nothing stay so. PyTorch 2.5 and later need not be told, and Transformers 5.17 warns of it.
_STAY_EMPTY = {"allow_torch_fix": False} if torch.__version__ < "2.5" else {}


def _is_tracing() -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


# What an attention class does with a mask that it does not merely hand on.
_LOOKS_INTO_MASK = re.compile(r"attention_mask(\.dtype|(\[[^]\n]*\])? *(\+|&|!=))")
_sources: Dict[str, str] = {}
_look: Dict[str, bool] = {}


@getattr(torch.compiler, "assume_constant_result", lambda function: function)
def _source_of(configuration_module: str) -> str:
    """The modelling code beside a configuration; nothing where it cannot be read."""
    if configuration_module not in _sources:
        try:
            modeling = importlib.import_module(configuration_module.replace("configuration_", "modeling_"))
            _sources[configuration_module] = inspect.getsource(modeling)
        except (ImportError, OSError, TypeError):
            return ""
    return _sources[configuration_module]


@getattr(torch.compiler, "assume_constant_result", lambda function: function)
def _names_its_windows(configuration_module: str) -> bool:
    """Whether the model hands its sliding window to the attention function. One that does not (PhiMoE, Qwen2-MoE)
    relies on the mask alone."""
    return "sliding_window=" in _source_of(configuration_module)


@getattr(torch.compiler, "assume_constant_result", lambda function: function)
def _looks_into_masks(configuration_module: str) -> bool:
    """Whether the model's attention classes join the mask with one of their own (Doge, DeepSeek-V3.2): it must be the
    full one, as eager has it."""
    if configuration_module not in _look:
        classes = re.split(r"^(?=class |def |@)", _source_of(configuration_module), flags=re.MULTILINE)
        _look[configuration_module] = any(re.match(r"class \w*Attention\b", part) and _LOOKS_INTO_MASK.search(part)
                                          for part in classes)
    return _look[configuration_module]


def _is_native_window(local_size: Optional[int], config: Any) -> bool:
    """Whether the kernel's window can stand for this mask; a mask of chunks has a size too, but is another thing."""
    if local_size is None:
        return True
    if config is None or getattr(config, "attention_chunk_size", None) == local_size:
        return False
    return getattr(config, "sliding_window", None) == local_size and _names_its_windows(type(config).__module__)


def _calls_itself_bidirectional(config: Any) -> bool:
    """Whether the modules of such a model say that they are not causal, although their mask is. UMT5's did in Transformers
    5.17, where its decoder's attention was not told."""
    model_type = getattr(config, "model_type", "")
    return (bool(getattr(config, "use_bidirectional_attention", False)) or model_type == "aimv2_text_model" or
            model_type == "umt5" and "is_causal=config.is_decoder" not in _source_of(type(config).__module__))


def _parts(mask_function: Callable[..., Any]) -> List[Callable[..., Any]]:
    """What an and_masks() of Transformers is made of."""
    if getattr(mask_function, "__qualname__", "").startswith("and_masks.") and mask_function.__closure__:
        inner = [cell.cell_contents for cell in mask_function.__closure__]
        return [part for functions in inner for function in functions for part in _parts(function)]
    return [mask_function]


def _is_packing_alone(mask_function: Callable[..., Any]) -> bool:
    """Whether it hides no more and no less than the causal mask, a window and the ends of packed sequences do."""
    known = ("causal_mask_function", "packed_sequence_mask_function.", "sliding_window_overlay.")
    return all(getattr(part, "__module__", "") == masking_utils.__name__ and part.__qualname__.startswith(known)
               for part in _parts(mask_function))


def _window_to_both_sides(mask_function: Callable[..., Any]) -> Optional[int]:
    """How far a row sees to each side, if that is all the function says (ModernBERT's local layers)."""
    window = None
    for part in _parts(mask_function):
        name = getattr(part, "__qualname__", "") if getattr(part, "__module__", "") == masking_utils.__name__ else ""
        if name.startswith("sliding_window_bidirectional_overlay.") and part.__closure__ and window is None:
            window = part.__closure__[0].cell_contents
        elif name != "bidirectional_mask_function":
            return None
    return window if isinstance(window, int) and window <= _WIDEST else None


def _both_sides(window: int, batch_size: int, kv_length: int, attention_mask: Optional[Tensor], device: Any) -> Tensor:
    """(batch, 1, 1, keys), window + 1 where a key is no padding. Its both_sides is (window, whether any key is padding)."""
    padding = None if attention_mask is None else attention_mask[:, :kv_length].to(torch.bool)
    has_padding = padding is not None and not bool(padding.all())
    seen = torch.ones(batch_size, kv_length, dtype=torch.bool, device=device) if padding is None else padding
    made = seen[:, None, None, :].to(_BOTH_SIDES) * (window + 1)
    made.both_sides = (window, has_padding)
    return made


def mask(
    batch_size: int,
    *args: Any,
    kv_length: int,
    q_length: Optional[int] = None,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    cache_position: Optional[Tensor] = None,
    attention_mask: Optional[Tensor] = None,
    local_size: Optional[int] = None,
    allow_is_causal_skip: bool = True,
    config: Any = None,
    **kwargs: Any,
) -> Optional[Tensor]:
    """None: the kernel's causal mask and window say it all. (batch, 1, 1, kv_length) of uint8: besides, keys that are
    padding. (batch, 1, 1, kv_length) of int16: keys that are no padding, with a window to both sides. (batch, 1, q_length,
    kv_length): everything, in full.

    The first two need the last query to stand at the last key, and None a row for every key: without a mask of its own
    a model may mean all pairs. Transformers 4.57 passes cache_position instead of q_length and q_offset, and allows a
    causal mask to be left out for no other cache than one of which this is true.
    """
    if cache_position is not None:
        rows, at_the_end = cache_position.shape[0], True
        positions = dict(cache_position=cache_position)
    else:
        rows = q_length
        known = isinstance(q_offset, int) and isinstance(kv_offset, int)
        at_the_end = known and q_offset + q_length == kv_offset + kv_length
        positions = dict(q_length=q_length, q_offset=q_offset)
    is_native = _is_native_window(local_size, config) and not (
        config is not None and _looks_into_masks(type(config).__module__))
    if at_the_end and rows == kv_length and not (config is not None and _looks_into_masks(type(config).__module__)):
        window = _window_to_both_sides(kwargs.get("mask_function", masking_utils.causal_mask_function))
        is_whole = attention_mask is None or attention_mask.dim() == 2 and attention_mask.shape[-1] == kv_length
        if window is not None and is_whole and not _is_tracing():
            return _both_sides(window, batch_size, kv_length, attention_mask, kwargs.get("device", "cpu"))
    if allow_is_causal_skip and at_the_end and is_native:
        may_be_none = (rows == 1 and local_size is None or
                       rows in (1, kv_length) and not _calls_itself_bidirectional(config))
        if attention_mask is None:
            padding = None if may_be_none else torch.ones(batch_size, kv_length, dtype=_PADDING,
                                                          device=kwargs.get("device", "cpu"))
        else:
            begin = kv_offset if isinstance(kv_offset, int) else attention_mask.shape[-1] - kv_length
            padding = attention_mask[:, begin:begin + kv_length].to(torch.bool)
            if may_be_none and not _is_tracing() and padding.shape[-1] == kv_length and bool(padding.all()):
                padding = None
        if padding is None:
            return None
        if rows > 1 and padding.shape[-1] == kv_length:
            return padding[:, None, None, :].to(_PADDING)
    made = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](
        batch_size,
        *args,
        kv_length=kv_length,
        kv_offset=kv_offset,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=False,
        config=config,
        **positions,
        **{**_STAY_EMPTY, **kwargs},
    )
    if made is not None and is_native and attention_mask is None and not _is_tracing():
        # With cu_seq_lens the kernel needs no mask for this.
        made.is_packing_alone = _is_packing_alone(kwargs.get("mask_function", masking_utils.causal_mask_function))
    return made


def _length(value: Any) -> Optional[int]:
    """A longest length, if it costs nothing to know: it is a hint."""
    return value if isinstance(value, int) else None


def _wants_weights(module: torch.nn.Module, kwargs: Dict[str, Any]) -> bool:
    if kwargs.get("output_attentions"):
        return True
    if torch.compiler.is_compiling():
        return False
    if _active_collector is None:  # before 5 the module's forward is replaced by one that keeps what is asked for
        forward = vars(module).get("forward")
        names = forward.__code__.co_freevars if inspect.isfunction(forward) else ()
        wants = "key" in names and "attentions" in str(forward.__closure__[names.index("key")].cell_contents)
    else:
        try:
            collected = _active_collector.get()
        except LookupError:
            return False
        wants = bool(collected) and any(name.endswith("attentions") for name in collected)
    return wants and not _is_tracing()


def _refuse_unknown(module: torch.nn.Module, kwargs: Dict[str, Any]) -> None:
    """What is not used here must not change the result."""
    if _wants_weights(module, kwargs):
        raise Unsupported("output_attentions is True, want False: the weights are never held; or "
                          "attn_implementation='eager'")
    for name, value in kwargs.items():
        if value is None or value is False or name in _SAY_NOTHING:
            continue
        raise Unsupported(f"{name} is given to the attention function, which attn_implementation={NAME!r} does not "
                          "know and will not ignore; want attn_implementation='sdpa' or 'eager' for this model")


def _is_made_here(attention_mask: Optional[Tensor], dtype: torch.dtype) -> bool:
    """Whether mask() made it, as (batch, 1, 1, keys) of such a type. A mask of all pairs is the caller's, whatever its type."""
    return attention_mask is not None and attention_mask.dtype == dtype and attention_mask.dim() == 4 and attention_mask.shape[2] == 1


def _same_sequence(cu_q: Tensor, cu_k: Tensor, rows: int, keys: int, left: Optional[int] = None,
                   right: Optional[int] = None) -> Tensor:
    """(1, 1, rows, keys): whether row i and key j are of the same packed sequence, and j at most so far from i's diagonal.
    Its last row and its last key are on it."""
    row, key = (torch.arange(count, device=cu.device) for cu, count in ((cu_q, rows), (cu_k, keys)))
    of_row, of_key = (torch.bucketize(at, cu[1:], right=True) for at, cu in ((row, cu_q), (key, cu_k)))
    seen = of_row[:, None] == of_key[None]
    row, key = (at - cu[1:][of.clamp(max=cu.shape[0] - 2)] for at, cu, of in ((row, cu_q, of_row), (key, cu_k, of_key)))
    if left is not None:
        seen = seen & (key[None] >= row[:, None] - left)
    if right is not None:
        seen = seen & (key[None] <= row[:, None] + right)
    return seen[None, None]


def attention(
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
    s_aux: Optional[Tensor] = None,
    position_bias: Optional[Tensor] = None,
    cu_seq_lens_q: Optional[Tensor] = None,
    cu_seq_lens_k: Optional[Tensor] = None,
    **kwargs: Any,
) -> Tuple[Tensor, None]:
    """query (batch, heads, rows, dim), key and value (batch, key heads, keys, dim) -> ((batch, rows, heads, dim),
    None).

    attention_mask: see mask(); one of floats is added to the scores, as position_bias is. cu_seq_lens_q and
    cu_seq_lens_k (packed rows, batch 1, or without a mask all rows of the batch) make the packed form of it, which needs no
    mask of the causal kind.
    """
    _refuse_unknown(module, kwargs)
    rows, keys = query.shape[2], key.shape[2]
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if q.dtype != k.dtype or v.dtype != k.dtype:
        q, k = q.to(v.dtype), k.to(v.dtype)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if attention_mask is None and cu_seq_lens_q is None:
        # mask() leaves out a causal one alone. Where that cannot be it, the model has no mask and means every key, whatever
        # it says of a window, as eager has it (DiffusionGemma's canvas).
        causal = causal and (rows == keys or rows == 1)
        window = (sliding_window - 1, None) if causal and sliding_window is not None else None
        return mica.attention(q, k, v, causal=causal, window=window, scale=scaling, softcap=softcap, sinks=s_aux,
                              dropout=dropout, bias=position_bias), None
    options: Dict[str, Any] = dict(scale=scaling, softcap=softcap, sinks=s_aux, dropout=dropout)
    if _is_made_here(attention_mask, _PADDING):
        causal = True  # mask() makes such of causal masks alone, whatever the module says of itself
    side = None if sliding_window is None else sliding_window - 1
    native: Dict[str, Any] = dict(causal=causal, window=None if side is None else (side, None if causal else side))
    if attention_mask is not None and _is_made_here(attention_mask, _BOTH_SIDES):
        if cu_seq_lens_q is not None or position_bias is not None:
            raise Unsupported("attention_mask is a window to both sides, want neither cu_seq_lens_q nor position_bias with it")
        # NOTE: sliding_window does not tell: ModernBERT counts the row itself, T5Gemma does not.
        said = getattr(attention_mask, "both_sides", None)
        seen, has_padding = said or (max(0, int(attention_mask.max()) - 1), True)
        return mica.attention(q, k, v, window=(seen, seen), mask=attention_mask.to(torch.bool) if has_padding else None,
                              **options), None
    if attention_mask is not None and attention_mask.dim() == 2:
        if attention_mask.shape[1] < keys:
            raise Unsupported(f"attention_mask has {attention_mask.shape[1]} entries for {keys} keys, which attn_implementation="
                              f"'{NAME}' will not ignore; want one for each key")
        attention_mask = attention_mask[:, None, None, :].to(_PADDING)
    if attention_mask is not None and attention_mask.dim() != 4:
        raise Unsupported(f"attention_mask has {attention_mask.dim()} axes, want 2 or 4")
    is_padding = _is_made_here(attention_mask, _PADDING)
    if cu_seq_lens_q is not None and (query.shape[0] == 1 or attention_mask is None):
        cu_q, cu_k = (t.to(torch.int32) for t in (cu_seq_lens_q, cu_seq_lens_q if cu_seq_lens_k is None
                                                  else cu_seq_lens_k))
        if position_bias is None and (attention_mask is None or is_padding or
                                      getattr(attention_mask, "is_packing_alone", False)):
            lengths: Dict[str, Any] = {f"max_seqlen_{side}": _length(kwargs.get(f"max_length_{side}")) for side in "qk"}
            made = mica.attention_varlen(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_q, cu_k, **lengths, **native,
                                         **options)
            return made.unflatten(0, (query.shape[0], rows)), None
        if query.shape[0] != 1:
            raise Unsupported(f"cu_seq_lens_q is given with position_bias and a batch of {query.shape[0]}, want a batch of 1")
        if attention_mask is None or is_padding:
            attention_mask = _same_sequence(cu_q, cu_k, rows, keys, side, 0 if causal else side)
        elif attention_mask.dtype == torch.bool:
            attention_mask = attention_mask[..., :keys] & _same_sequence(cu_q, cu_k, rows, keys)
        else:
            attention_mask = attention_mask[..., :keys].masked_fill(~_same_sequence(cu_q, cu_k, rows, keys), float("-inf"))
    elif is_padding:
        options.update(native)
    if position_bias is not None:
        options["bias"] = position_bias
    assert attention_mask is not None  # there is one, or one was made of the packed lengths
    attention_mask = attention_mask[..., :keys]
    if attention_mask.is_floating_point():
        attention_mask = finite_bias(attention_mask)
        bias = attention_mask if position_bias is None else position_bias + attention_mask
        return mica.attention(q, k, v, **dict(options, bias=bias)), None
    return mica.attention(q, k, v, mask=attention_mask.to(torch.bool), **options), None


@functools.lru_cache(maxsize=None)
def _has_a_list_of_its_own(modeling: str) -> bool:
    """Whether the models of this module take their attention classes from a table, which ends with a KeyError."""
    tables = [table for name, table in vars(sys.modules[modeling]).items()
              if isinstance(table, dict) and re.fullmatch(r"\w*ATTENTION_(CLASSES|FUNCTIONS?)", name)]
    return any("eager" in table for table in tables)


def _refuse_model(kind: Any) -> None:
    """A model that cannot be served. Transformers asks the same of sdpa; those that take registered attention but not
    sdpa (softcap, sinks) are served."""
    why = None
    if not (kind._supports_sdpa or kind._supports_attention_backend):
        why = "computes its attention itself"
    elif _has_a_list_of_its_own(kind.__module__):
        why = "has a list of its own of attention classes"
    if why is not None:
        raise ValueError(f"attn_implementation is {NAME!r}, but {kind.__name__} {why} and would not call it; want "
                         "'eager' or what else this model knows")


def _install_check() -> None:
    """Has Transformers ask, wherever it checks an implementation's name for a model."""
    original = PreTrainedModel.get_correct_attn_implementation
    if getattr(original, "asks_mica", False):
        return

    @functools.wraps(original)
    def get_correct_attn_implementation(self: Any, requested_attention: Any, *args: Any, **kwargs: Any) -> Any:
        if requested_attention in _names:
            _refuse_model(type(self))
        return original(self, requested_attention, *args, **kwargs)

    get_correct_attn_implementation.asks_mica = True  # type: ignore[attr-defined]
    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation


def register(name: str = NAME) -> None:
    """Makes attn_implementation=name known. Importing this module does it for "mica"."""
    if "flash" in name or "/" in name:
        raise ValueError(f"name is {name!r}, want one without 'flash' and '/': those mean something to Transformers")
    _names.add(name)
    _install_check()
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


register()
