# SPDX-License-Identifier: Apache-2.0
"""Sizes that must fit each other in a way that their names do not tell: model type -> path in the configuration -> value."""

_MIMI = {"upsample_groups": 64, "codebook_dim": 32, "vector_quantization_hidden_dimension": 32}

OVERRIDES: dict = {
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 32},
    "chameleon": {"vocabulary_map": {"<image>": 5, "IMGIMGAZ": 9}},
    "csm": {f"codec_config.{name}": value for name, value in _MIMI.items()},
    "dbrx": {"attn_config.rope_theta": 1e4, "attn_config.kv_n_heads": 2, "ffn_config.moe_num_experts": 2,
             "ffn_config.moe_top_k": 1, "ffn_config.ffn_hidden_size": 96},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "ernie4_5_vl_moe": {"text_config.rope_parameters.mrope_section": [3, 3, 2]},
    "ernie4_5_vl_moe_text": {"rope_parameters.mrope_section": [3, 3, 2]},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "gemma3n_text": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
                     "num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0, 0.0]},
    "glm4v_moe": {"text_config.rope_parameters.mrope_section": [2, 1, 1]},
    "glm4v_moe_text": {"rope_parameters.mrope_section": [2, 1, 1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 32},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "kyutai_speech_to_text": {f"codec_config.{name}": value for name, value in _MIMI.items()},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mimi": _MIMI,
    "mimi_decoder": _MIMI,
    "pocket_tts_audio_tokenizer": {"upsample_groups": 64},
    "pocket_tts_audio_tokenizer_decoder": {"upsample_groups": 64},
}
