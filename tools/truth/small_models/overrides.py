# SPDX-License-Identifier: Apache-2.0
"""Sizes that must fit each other in a way that their names do not tell: model type -> path in the configuration -> value.
A list has one such table for each way in which releases of Transformers name the same thing."""

_MIMI = {"upsample_groups": 64, "codebook_dim": 32, "vector_quantization_hidden_dimension": 32}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32}
_EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
_ROPE_OF_KINDS = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}
_THREE_PARTS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_DAVIT = {"embed_dim": (16, 32, 64, 64), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 4), "num_groups": (1, 2, 4, 4),
          "window_size": 4, "drop_path_rate": 0.0}
_GEMMA3N = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0,
            "activation_sparsity_pattern": [0.0, 0.0], "intermediate_size": [96, 96]}
_DBRX = {"attn_config.kv_n_heads": 2, "attn_config.clip_qkv": 8.0, "ffn_config.moe_num_experts": 2,
         "ffn_config.moe_top_k": 1, "ffn_config.ffn_hidden_size": 96}
_QWEN4 = {"layer_types": ["linear_attention", "indexed_attention"], "ngram_vocab_size_base": 64, "split_ngram_parts": 1,
          "make_ngram_vocab_size_divisible_by": 1, "ple_embed_dim": 64, "indexer_n_heads": 4, "indexer_kv_heads": 1,
          "indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 4}
_NEMOTRON_H = {"n_groups": 2, "mamba_num_heads": 4, "mamba_head_dim": 32}
_STEP = {"sliding_window": 6, "rope_parameters": _ROPE_OF_KINDS, "layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2,
         "mlp_layer_types": ["dense", "sparse"], "num_sliding_attention_heads": 4}


def _in(part, changes):
    return {f"{part}.{name}": value for name, value in changes.items()}


OVERRIDES: dict = {
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 32},
    "chameleon": {"vocabulary_map": {"<image>": 5, "IMGIMGAZ": 9}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "ernie4_5_vl_moe": {"text_config.rope_parameters.mrope_section": [3, 3, 2]},
    "ernie4_5_vl_moe_text": {"rope_parameters.mrope_section": [3, 3, 2]},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mimi": _MIMI,
    "mimi_decoder": _MIMI,
    "pocket_tts_audio_tokenizer": {"upsample_groups": 64},
    "pocket_tts_audio_tokenizer_decoder": {"upsample_groups": 64},
    "csm": _in("codec_config", _MIMI),
    "kyutai_speech_to_text": _in("codec_config", _MIMI),
    "granitemoehybrid": [{"layer_types": ["linear_attention", "full_attention"], **_MAMBA}, {"layer_types": ["mamba", "attention"], **_MAMBA},
                         {"layers_block_type": ["mamba", "attention"], **_MAMBA}],
    "gemma3n_text": _GEMMA3N,
    "gemma3n": {**_in("text_config", _GEMMA3N), "vision_config.architecture": "mobilenetv3_small_050"},
    "pi0": {"vlm_config.vision_config.image_size": 16},
    "dbrx": [{**_DBRX, "attn_config.rope_theta": 1e4}, _DBRX],
    "cohere_compass": {"text_config.rope_parameters": _ROPE_OF_KINDS},
    "cohere_compass_text": {"rope_parameters": _ROPE_OF_KINDS},
    "diffusion_gemma": _in("text_config", _EXPERTS),
    "diffusion_gemma_text": _EXPERTS,
    "esm": {"vocab_size": 128, "pad_token_id": 0, "mask_token_id": 3, "position_embedding_type": "rotary"},
    "esmc": {"vocab_size": 128},
    "florence2": _in("vision_config", _DAVIT),
    "florence_vision": _DAVIT,
    "granite4_vision": {"deepstack_layer_map": [[-1, 0]], "downsample_rate": "1/2", "spatial_target_layers": [1]},
    "blip-2": {"image_token_id": 5, "image_token_index": 5},
    "instructblip": {"image_token_id": 5, "image_token_index": 5},
    "instructblipvideo": {"video_token_id": 5, "video_token_index": 5},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "idefics2_perceiver": {"hidden_size": 64, "resampler_n_latents": 8, "resampler_head_dim": 16},
    "kosmos-2": {"latent_query_num": 4, "text_config.layers": 2},
    "llama4_vision_model": {"projector_input_dim": 64, "projector_output_dim": 64, "intermediate_size": 256},
    "longcat_flash": {"n_routed_experts": 4, "zero_expert_num": 2, "moe_topk": 2, "expert_ffn_hidden_size": 32, "ffn_hidden_size": 96,
                      "qk_head_dim": 32, "head_dim": 16},
    "mllama_vision_model": {"intermediate_layers_indices": [0, 1], "num_global_layers": 1, "vision_output_dim": 192, "max_num_tiles": 4,
                            "attention_heads": 4},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "nemotron": {"num_key_value_heads": 2},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 32},
    "step3p5": _STEP,
    "step3p7": _in("text_config", _STEP),
    "t5gemma2_text": {"dropout_rate": 0.0},
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0, "dropout_rate": 0.0},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "xmod": {"default_language": "en_XX"},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "molmo2_vision": {"image_size": [32, 32], "patch_size": 8, "num_position_embeddings": 16},
    "qwen2_5_omni_audio_encoder": {"n_window": 8, "output_dim": 64},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 4, "vision_end_token_id": 7},
    "glm4v": [{}, {"text_config.rope_scaling": _THREE_PARTS}],
    "glm4v_text": [{}, {"rope_scaling": _THREE_PARTS}],
    "glm4v_moe": [{"text_config.rope_parameters.mrope_section": [2, 1, 1]}, {"text_config.rope_scaling": {**_THREE_PARTS, "mrope_section": [2, 1, 1]}}],
    "glm4v_moe_text": [{"rope_parameters.mrope_section": [2, 1, 1]}, {"rope_scaling": {**_THREE_PARTS, "mrope_section": [2, 1, 1]}}],
    "colqwen2": [{}, {"vlm_config.text_config.rope_scaling": _THREE_PARTS}],
    "emu3": {"vocabulary_map": {"<image>": 5, "<|extra_200|>": 9, "<|visual token 000001|>": 10},
             "vq_config.base_channels": 32, "vq_config.channel_multiplier": [1, 1]},
    "qwen3_omni_moe": {"talker_config.text_config.shared_expert_intermediate_size": 32, "talker_config.spatial_merge_size": 2},
    "qwen4_exp_text": _QWEN4,
    "qwen4_exp": _in("text_config", _QWEN4),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_omni": _in("text_config", _NEMOTRON_H),
    "nemo_speechlm": _in("text_config", _NEMOTRON_H),
    "qwen3_omni_moe_audio_encoder": {"output_dim": 64},
    "mllama": [{}, {"text_config.rope_scaling": {"rope_type": "default"}}],
    "xclip": {"vision_config.mit_hidden_size": 64, "vision_config.mit_num_attention_heads": 4,
              "vision_config.mit_intermediate_size": 96},
}
