# SPDX-License-Identifier: Apache-2.0
"""Small configurations: names of numbers are recognised; what names do not tell stands in OVERRIDES."""

import copy
import inspect
import re

from .overrides import OVERRIDES
from .whole_configs import ARGUMENTS

VOCABULARY, HIDDEN, HEADS, KEY_HEADS = 128, 64, 4, 2

# Names of configurations' numbers, by what they are; the first pattern that fits decides.
SIZES = [
    (r"(^|_)(vocab_size|n_vocab|vocabulary_size)$|^(text|audio|speech|unit|t2u)?_?vocab_size$|"
     r"^vocab_size_per_layer_input$", VOCABULARY),
    (r"^(num_key_value_heads|num_kv_heads|n_head_kv|multi_query_group_num|swa_num_key_value_heads|"
     r"num_global_key_value_heads)$", KEY_HEADS),
    (r"^head_dim$|^attention_head_size$|^d_kv$|^global_head_dim$|^swa_head_dim$|^linear_(key|value)_head_dim$",
     HIDDEN // HEADS),
    (r"heads?$|^n_heads?$|_heads_", HEADS),
    (r"^(kv_lora_rank|q_lora_rank|index_head_dim)$", 32),
    (r"^(qk_nope_head_dim|qk_rope_head_dim|v_head_dim|hidden_size_per_layer_input)$", 16),
    (r"(intermediate|ffn|feedforward|mlp)_?(size|dim)(_mlp)?$|^d_ff$|^n_inner$|shared_intermediate", 96),
    (r"^(hidden_size|d_model|n_embd|dim|embed_dim|emb_dim|embedding_size|projection_dim|out_hidden_size|width|"
     r"embed_size|n_state|encoder_hidden_size|cross_hidden_size|qformer_hidden_size|text_embed_dim|decoder_hidden_size|"
     r"hidden_dim|model_dim|encoder_embed_dim|decoder_embed_dim|vision_hidden_size|mm_hidden_size|"
     r"language_dim|output_dim|output_proj_dims|text_hidden_size|input_hidden_size|mamba_expand_dim)$", HIDDEN),
    (r"(^|_)(num_(hidden_)?layers|n_layers?|num_decoder_layers|encoder_layers|decoder_layers|depth|num_blocks|"
     r"num_encoder_layers|t2u_encoder_layers|t2u_decoder_layers)$", 2),
    (r"^(num_local_experts|num_experts|n_routed_experts|moe_num_experts|num_routed_experts)$", 4),
    (r"^(num_experts_per_tok|moe_k|num_experts_per_token|moe_topk)$", 2),
    (r"^(n_group|topk_group|n_shared_experts|num_shared_experts|first_k_dense_replace|num_nextn_predict_layers)$", 1),
    (r"^(max_position_embeddings|n_positions|max_seq_len|seq_length|n_ctx|max_source_positions|"
     r"max_target_positions|max_sequence_length)$", 256),
    (r"^(image_size|img_size|input_size)$", 32),
    (r"^patch_size$", 8),
    (r"^(sliding_window|attention_window|local_attention)$", 6),
    (r"^attention_chunk_size$", 8),
    (r"^(num_queries|num_query_tokens|num_latents|index_topk)$", 8),
    (r"^(pad_token_id|padding_idx)$", 0),
    (r"^(bos_token_id|decoder_start_token_id)$", 1),
    (r"^(vision|image|boi)_(start_)?token_id$|^boi_token_(id|index)$", 4),
    (r"^video_token_(id|index)$", 6),
    (r"^(vision|image)_end_token_id$|^eoi_token_(id|index)$", 7),
    (r"^(image|audio|speech)\w*_token_(id|index)$|_token_id$|_token_index$", 5),
]
IMAGE_IDS = ("image_token_id", "image_token_index")  # before all patterns: these are 5
# What the gentle way sets: the rest of the sizes stays as the configuration's authors chose it.
GENTLE = re.compile(r"layers?$|^depth$|num_blocks$|vocab|_token_(id|index)$|experts$|^sliding_window$|position")
DROPPED = re.compile(r"(^|_)(dropout|drop_path_rate|drop_rate|dropout_rate|drop_prob|layerdrop|pdrop)(_\w+)?$|"
                     r"_(dropout|pdrop|layerdrop)$")
KINDS_OF_LAYERS = ("layer_types", "mlp_layer_types", "layers_block_type")


def _small(name, value, key_heads, gentle):
    """What a configuration's number becomes."""
    if name in IMAGE_IDS:
        return 5
    if gentle and not GENTLE.search(name):
        return value
    for pattern, small in SIZES:
        if re.search(pattern, name):
            small = key_heads if small == KEY_HEADS and "head" in name else small
            return small if name.endswith(("_token_id", "_token_index")) else min(value, small) if value > 0 else value
    return value


def _shrink_rope(values):
    """Parts of the rotary dimensions, which must add up to half of the head's."""
    for value in values.values():
        if isinstance(value, dict):
            _shrink_rope(value)
    if "mrope_section" in values or "rope_type" in values:
        values["mrope_section"] = [2, 3, 3]


def _set(config, name, value):
    try:
        setattr(config, name, value)
    except (AttributeError, RuntimeError, TypeError, ValueError):  # derived, or checked: the configuration knows better
        pass


def _get(config, name):
    try:
        return getattr(config, name, None)
    except RuntimeError:  # differs from layer to layer
        return None


def shrink(config, key_heads, gentle=False, depth=0):
    """Sets what can be recognised to small values, in nested configurations too."""
    for name in sorted(vars(config)):
        value = _get(config, name)
        if hasattr(value, "to_dict") and depth < 4:
            shrink(value, key_heads, gentle, depth + 1)
        elif name in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            if not gentle:
                _shrink_rope(value)
        elif isinstance(value, bool) or name.startswith("_"):
            continue
        elif DROPPED.search(name) and isinstance(value, float):
            _set(config, name, 0.0)
        elif isinstance(value, int):
            small = _small(name, value, key_heads, gentle)
            if small != value:
                _set(config, name, small)
        elif name in KINDS_OF_LAYERS and isinstance(value, list) and value:
            _set(config, name, (sorted(set(value)) * 2)[:max(2, len(set(value)))])
    if "head_dim" in vars(config) and _get(config, "head_dim") is None and not gentle:
        _set(config, "head_dim", HIDDEN // HEADS)
    for name in ("eos_token_id", "forced_eos_token_id"):
        if _get(config, name) is not None:
            _set(config, name, None if name != "eos_token_id" else VOCABULARY - 1)
    for name in ("gradient_checkpointing", "apply_spec_augment"):
        if hasattr(config, name):
            _set(config, name, False)
    kinds, layers = _get(config, "layer_types"), _get(config, "num_hidden_layers")
    if isinstance(kinds, list) and kinds and isinstance(layers, int):
        _set(config, "num_hidden_layers", max(layers, len(set(kinds))))
        _set(config, "layer_types", (kinds * layers)[:max(layers, len(set(kinds)))])
    return config


def _anew(kind, key_heads, gentle):
    """Made from small values and not changed afterwards, so that what it derives fits; layers of all its kinds."""
    default = kind()
    names = set(inspect.signature(kind.__init__).parameters) | set(getattr(kind, "__dataclass_fields__", {}))
    values = {}
    for name in sorted(names & set(vars(default))):
        value = _get(default, name)
        if hasattr(value, "to_dict"):
            values[name] = _anew(type(value), key_heads, gentle).to_dict()
        elif isinstance(value, bool) or name.startswith("_"):
            continue
        elif isinstance(value, int):
            values[name] = _small(name, value, key_heads, gentle)
        elif isinstance(value, float) and DROPPED.search(name):
            values[name] = 0.0
        elif name in KINDS_OF_LAYERS and isinstance(value, list) and value:
            values[name] = (sorted(set(value), reverse=True) * 2)[:max(2, len(set(value)))]
        elif name in ("head_dim",) and value is None and not gentle:
            values[name] = HIDDEN // HEADS
        elif name in ("rope_parameters", "rope_scaling") and isinstance(value, dict) and not gentle:
            _shrink_rope(value)
            values[name] = value
    layers = [len(values[name]) for name in KINDS_OF_LAYERS if name in values]
    if layers and "num_hidden_layers" in values:
        values["num_hidden_layers"] = layers[0]
    if "eos_token_id" in values:
        values["eos_token_id"] = VOCABULARY - 1
    if "global_head_dim" not in values and "per_layer_config" in dir(default):
        values["global_head_dim"] = HIDDEN // HEADS
    return kind(**values)


def _from_scalars(kind, key_heads, gentle):
    """Changed after it was made, then made anew from the numbers that differ, where that works."""
    config = shrink(kind(), key_heads, gentle)
    values = {k: v for k, v in config.to_diff_dict().items() if isinstance(v, (int, float, str, bool)) and
              k not in ("model_type", "transformers_version", "architectures")}
    names = set(inspect.signature(kind.__init__).parameters)
    values = {k: v for k, v in values.items() if k in names}
    if not any(hasattr(v, "to_dict") for v in vars(config).values()):
        try:
            config = shrink(kind(**values), key_heads, gentle)
        except Exception:  # noqa: BLE001 - what a configuration refuses is tried in the other ways
            pass
    return config


def _override(config, changes):
    if not hasattr(config, "pad_token_id"):  # of its parts alone, where the model asks the whole
        _set(config, "pad_token_id", 0)
    for part in (config, getattr(config, "text_config", None)):  # Transformers 4.57 leaves it to the checkpoint
        if re.match(r"qwen\w+_vl", getattr(part, "model_type", "")) and getattr(part, "rope_scaling", 0) is None:
            part.rope_scaling = dict(rope_type="default", mrope_section=[2, 3, 3])
    for path, value in changes.items():
        *outer, name = path.split(".")
        inner = config
        for part in outer:
            inner = inner[part] if isinstance(inner, dict) else getattr(inner, part)
        if isinstance(inner, dict):
            inner[name] = value
        else:
            setattr(inner, name, value)
    return config


def small_configs(kind, model_type):
    """Functions that make a configuration, the likeliest to be small and sound first."""
    if model_type in ARGUMENTS:
        yield lambda: _override(kind(**copy.deepcopy(ARGUMENTS[model_type])), {})
        return
    ways = [(make, key_heads, gentle) for gentle in (False, True) for make in (_from_scalars, _anew)
            for key_heads in (KEY_HEADS, HEADS)]
    changes = OVERRIDES.get(model_type, {})
    for make, key_heads, gentle in ways:
        for table in changes if isinstance(changes, list) else [changes]:
            yield lambda: _override(make(kind, key_heads, gentle), table)
