# SPDX-License-Identifier: Apache-2.0
"""Configurations written out whole, where parts must fit each other so closely that shrinking number by number does not do:
model type -> the arguments of its configuration's class."""

_TEXT = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256)
_BLT_LOCAL = dict(vocab_size=128, hidden_size=64, hidden_size_global=128, num_hidden_layers=2, num_attention_heads=4,
                  intermediate_size=96)
_BLT_BYTES = dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96)
_DINO2 = dict(model_type="dinov2", image_size=32, patch_size=4, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
              mlp_ratio=2)
_DINO3 = dict(model_type="dinov3_vit", image_size=64, patch_size=16, hidden_size=64, intermediate_size=96,
              num_hidden_layers=4, num_attention_heads=4, num_register_tokens=4, out_indices=[1, 2, 3, 4],
              reshape_hidden_states=True, apply_layernorm=True, return_class_token=True)

# The families of "segment anything": an image of 128 x 128 and features of 32, 16 and 8 rows.
_PROMPTS = dict(hidden_size=64, image_size=128, patch_size=16)
_MASKS = dict(hidden_size=64, mlp_dim=96, num_attention_heads=4, iou_head_hidden_dim=64)
_FEATURES = dict(backbone_feature_sizes=[[32, 32], [16, 16], [8, 8]], fpn_hidden_size=64)
_HIERA = dict(model_type="sam2_hiera_det_model", hidden_size=16, num_attention_heads=1, image_size=[128, 128],
              blocks_per_stage=[1, 2, 2, 1], embed_dim_per_stage=[16, 32, 64, 128],
              num_attention_heads_per_stage=[1, 2, 4, 8], window_size_per_stage=[8, 4, 4, 4], global_attention_blocks=[4],
              window_positional_embedding_background_size=[4, 4])
_SAM2_VISION = dict(model_type="sam2_vision_model", backbone_config=_HIERA, backbone_channel_list=[128, 64, 32, 16], **_FEATURES)
_EDGETAM_VISION = dict(
    model_type="edgetam_vision_model", backbone_channel_list=[384, 192, 96, 48], **_FEATURES,
    backbone_config=dict(model_type="timm_wrapper", architecture="repvit_m1", num_classes=2,
                         model_args=dict(in_chans=3, features_only=True, out_indices=[0, 1, 2, 3])))
# With a memory of frames, whose rows the models fix at 64 channels, half of the features'.
_MEMORY = dict(image_size=128, memory_attention_hidden_size=128, memory_attention_num_layers=2, memory_attention_dropout=0.0,
               memory_attention_rope_dropout=0.0, memory_attention_rope_feat_sizes=[8, 8], memory_encoder_hidden_size=128,
               memory_encoder_output_channels=64, mask_downsampler_embed_dim=128, memory_fuser_embed_dim=128,
               memory_fuser_intermediate_dim=96, prompt_encoder_config=dict(_PROMPTS, hidden_size=128),
               mask_decoder_config=dict(_MASKS, hidden_size=128, iou_head_hidden_dim=128))
_SAM3_VISION = dict(
    model_type="sam3_vision_model", **_FEATURES,
    backbone_config=dict(model_type="sam3_vit_model", hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=4, image_size=128, patch_size=16, window_size=4, global_attn_indexes=[1],
                         pretrain_image_size=64))
_DETR = dict(hidden_size=64, num_layers=2, num_attention_heads=4, intermediate_size=96, dropout=0.0)
_SAM3 = dict(
    vision_config=_SAM3_VISION, geometry_encoder_config=_DETR, detr_encoder_config=_DETR,
    detr_decoder_config=dict(_DETR, num_queries=8), mask_decoder_config=dict(hidden_size=64, num_attention_heads=4))
_CLIP_TEXT = dict(vocab_size=128, hidden_size=64, intermediate_size=96, projection_dim=64, num_hidden_layers=2,
                  num_attention_heads=4, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2)

# Proteins
_ATOMS = dict(hidden_size=64, output_dim=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96)
_ESMFOLD2 = dict(
    hidden_size=64, pairwise_hidden_size=32, single_inputs_size=131, pair_transition_intermediate_size=64, sliding_window=16,
    num_loops=1, folding_trunk_num_hidden_layers=1, parcae_num_coda_layers=1, atom_encoder=_ATOMS,
    structure_head=dict(num_distogram_bins=16, num_diffusion_samples=1, inference_num_steps=2, diffusion_module=dict(
        hidden_size=64, fourier_dim=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        pair_intermediate_size=64, atom_encoder=_ATOMS)),
    confidence_head=dict(num_hidden_layers=1, num_plddt_bins=8, num_pde_bins=8, num_pae_bins=8, distogram_bins=16),
    msa_encoder=dict(hidden_size=32, outer_hidden_size=8, num_hidden_layers=1, num_attention_heads=2, head_dim=16,
                     intermediate_size=64),
    lm_encoder=dict(num_hidden_layers=1),
    esmc_config=dict(model_type="esmc", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=4, head_dim=16))

# Speech and sound
_PE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=16)
_PE_BOTH = dict(
    _PE, audio_config=dict(_PE, model_type="pe_audio_encoder",
                           dac_config=dict(encoder_hidden_size=8, downsampling_ratios=[2, 4], codebook_dim=16)),
    video_config=dict(_PE, model_type="pe_video_encoder",
                      vision_config=dict(model_type="timm_wrapper", architecture="vit_pe_core_tiny_patch16_384", num_classes=64,
                                         do_pooling=True, global_pool="map", model_args=dict(img_size=[32, 32]))))
_SEMANTIC = dict(model_type="wav2vec2-bert", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
                 output_hidden_size=64, conformer_conv_dropout=0.0, final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False)
_CODEC = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
              head_dim=16, encoder_hidden_size=4, quantization_dim=128, activation_dropout=0.0, semantic_model_config=_SEMANTIC)
_DIT = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, emb_dim=32, head_dim=16, block_size=4,
            look_ahead_layers=[0], look_backward_layers=[1], num_embeds=128, mel_dim=16, dropout=0.0, enc_emb_dim=16,
            enc_dim=16, enc_channels=[16, 16, 16, 16, 48], enc_attention_channels=8, enc_se_channels=8)
_BIGVGAN = dict(mel_dim=16, upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4],
                resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3, 5]])

_ASSISTED = dict(_TEXT, head_dim=16, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"],
                 global_head_dim=16, sliding_window=6, num_kv_shared_layers=2, hidden_size_per_layer_input=0)

# Two models put together.
_BERT = dict(model_type="bert", vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=256, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
_BERT_DECODER = dict(_BERT, is_decoder=True, add_cross_attention=True)
_VIT = dict(model_type="vit", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, image_size=32,
            patch_size=8)
_BART = dict(model_type="bart", vocab_size=128, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
             decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, max_position_embeddings=256, dropout=0.0,
             pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=None)
_WAV2VEC2 = dict(model_type="wav2vec2", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                 conv_dim=[32, 32], conv_stride=[20, 16], conv_kernel=[20, 16], num_feat_extract_layers=2,
                 num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, hidden_dropout=0.0, attention_dropout=0.0,
                 activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0, apply_spec_augment=False)
_VISION_TO_TEXT = dict(encoder=_VIT, decoder=_BERT_DECODER, decoder_start_token_id=1, pad_token_id=0)
_MUSIC = dict(
    text_encoder=dict(model_type="t5", vocab_size=128, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4),
    audio_encoder=dict(model_type="encodec", num_filters=8, hidden_size=16, codebook_size=64, codebook_dim=16,
                       upsampling_ratios=[4, 4], num_lstm_layers=1, target_bandwidths=[1.5]),
    decoder=dict(model_type="musicgen_decoder", vocab_size=64, hidden_size=64, ffn_dim=96, num_hidden_layers=2,
                 num_attention_heads=4, num_codebooks=2, max_position_embeddings=256))

ARGUMENTS: dict = {
    "encoder-decoder": dict(encoder=_BERT, decoder=_BERT_DECODER, decoder_start_token_id=1, pad_token_id=0),
    "vision-encoder-decoder": _VISION_TO_TEXT,
    "musicgen": _MUSIC,
    "musicgen_melody": dict(_MUSIC, decoder=dict(_MUSIC["decoder"], model_type="musicgen_melody_decoder")),
    "speech-encoder-decoder": dict(encoder=_WAV2VEC2, decoder=_BERT_DECODER, decoder_start_token_id=1, pad_token_id=0),
    "vision-text-dual-encoder": dict(vision_config=_VIT, text_config=_BERT, projection_dim=64),
    "rag": dict(question_encoder=dict(_BERT, model_type="dpr"), generator=_BART, n_docs=5),
    "blt": dict(vocab_size=128, num_hidden_layers=2, encoder_hash_byte_group_vocab=64, patcher_config=_BLT_BYTES, encoder_config=_BLT_LOCAL,
                decoder_config=_BLT_LOCAL, global_config=dict(_BLT_BYTES, hidden_size=128)),
    "blt_local_encoder": _BLT_LOCAL,
    "blt_local_decoder": _BLT_LOCAL,
    "chmv2": dict(backbone_config=_DINO3, post_process_channels=[16, 16, 16, 16], fusion_hidden_size=32,
                  head_hidden_size=16, number_output_channels=16),
    "depth_pro": dict(patch_size=32, image_model_config=_DINO2, patch_model_config=_DINO2, fov_model_config=_DINO2,
                      fusion_hidden_size=32, intermediate_hook_ids=[1, 0], intermediate_feature_dims=[32, 32],
                      scaled_images_feature_dims=[64, 64, 32], merge_padding_value=1),
    "zamba": dict(_TEXT, num_key_value_heads=4, num_hidden_layers=4,
                  layers_block_type=["linear_attention", "hybrid", "linear_attention", "hybrid"]),
    "edgetam": dict(vision_config=_EDGETAM_VISION, prompt_encoder_config=_PROMPTS, mask_decoder_config=_MASKS),
    "edgetam_vision_model": _EDGETAM_VISION,
    "sam2": dict(vision_config=_SAM2_VISION, prompt_encoder_config=_PROMPTS, mask_decoder_config=_MASKS),
    "sam2_vision_model": _SAM2_VISION,
    "sam2_hiera_det_model": _HIERA,
    "sam3": dict(_SAM3, text_config=_CLIP_TEXT),
    "sam3_detr_encoder": _DETR,
    "sam3_detr_decoder": dict(_DETR, num_queries=8),
    "sam3_mask_decoder": dict(hidden_size=64, num_attention_heads=4),
    "sam3_lite_text_detr_encoder": _DETR,
    "sam3_lite_text_detr_decoder": dict(_DETR, num_queries=8),
    "sam3_lite_text_mask_decoder": dict(hidden_size=64, num_attention_heads=4),
    "sam3_tracker": dict(vision_config=_SAM3_VISION, prompt_encoder_config=_PROMPTS, mask_decoder_config=_MASKS),
    "sam3_lite_text": dict(_SAM3, text_config=_CLIP_TEXT),
    "sam2_video": dict(_MEMORY, vision_config=dict(_SAM2_VISION, fpn_hidden_size=128)),
    "sam3_tracker_video": dict(_MEMORY, vision_config=dict(_SAM3_VISION, fpn_hidden_size=128)),
    "edgetam_video": dict(_MEMORY, vision_config=dict(_EDGETAM_VISION, fpn_hidden_size=128),
                          memory_attention_mlp_hidden_size=96, memory_attention_rope_k_sizes=[4, 4],
                          perceiver_resampler_num_latents=16, perceiver_resampler_num_latents_2d=16,
                          perceiver_resampler_hidden_size=64, perceiver_resampler_mlp_intermediate_size=32),
    "gemma3n_vision": dict(architecture="mobilenetv3_small_050", hidden_size=1024),
    "fast_vlm": dict(vision_config=dict(model_type="timm_wrapper", architecture="fastvit_t8", do_pooling=True,
                                        global_pool="avg", hidden_size=384, model_args=dict(inference_mode=True)),
                     text_config=dict(_TEXT, model_type="qwen2"), image_token_index=5),
    "gemma4_unified_assistant": dict(text_config=_ASSISTED, backbone_hidden_size=64),
    "gemma4_assistant": dict(text_config=dict(_ASSISTED, vocab_size_per_layer_input=0), backbone_hidden_size=64),
    "inkling_vision": dict(text_hidden_size=64, patch_size=8, temporal_patch_size=2, hidden_size=64, n_layers=2,
                           num_attention_heads=4),
    "janus_vqgan": dict(embed_dim=8, num_embeddings=64, latent_channels=32, base_channels=32, channel_multiplier=[1, 1],
                        num_res_blocks=1, num_patches=16, projection_dim=64, image_token_embed_dim=64),
    "lw_detr": dict(backbone_config=dict(model_type="lw_detr_vit", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=128,
                                         pretrain_image_size=64, patch_size=16, num_windows=4, window_block_indices=[0],
                                         out_indices=[1, 2]),
                    projector_scale_factors=[1.0], c2f_num_blocks=1, decoder_ffn_dim=96, decoder_layers=2,
                    decoder_self_attention_heads=4, decoder_cross_attention_heads=4, num_queries=8, group_detr=1, d_model=64),
    "esmfold2": _ESMFOLD2,
    "molmo2_adapter": dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=16, intermediate_size=96,
                           text_hidden_size=64, vision_feature_layer=[1, 0]),
    "muse_glimmer_assistant": dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                   num_key_value_heads=2, head_dim=16, sliding_window=6, bos_token_id=1, eos_token_id=2,
                                   pad_token_id=0, mask_token_id=3, layer_types=["sliding_attention"] * 2,
                                   target_layer_ids=[0, 1]),
    "muse_spark_audio": dict(hidden_sizes=[16, 16, 32, 64], depths=[1, 1, 1, 1], out_hidden_size=64),
    "neucodec": _CODEC,
    "xcodec2": _CODEC,
    "perception_lm": dict(vision_config=dict(model_type="timm_wrapper", architecture="vit_pe_core_tiny_patch16_384",
                                             do_pooling=False, model_args=dict(embed_dim=192, img_size=[64, 64])),
                          text_config=dict(_TEXT, model_type="llama"), image_token_id=5, video_token_id=6,
                          vision_use_cls_token=True, projector_pooling_ratio=2),
    "phi4_multimodal": dict(
        _TEXT, pad_token_id=0, bos_token_id=1, eos_token_id=2, rope_parameters=None,
        vision_config=dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, image_size=32,
                           patch_size=8, crop_size=32, image_token_id=5),
        audio_config=dict(hidden_size=64, intermediate_size=96, num_blocks=2, num_attention_heads=4, ext_pw_out_channel=64,
                          depthwise_separable_out_channel=64, nemo_conv_channels=64, audio_token_id=6)),
    "pe_audio_video": dict(audio_video_config=_PE_BOTH, text_config=dict(
        model_type="modernbert", vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        layer_types=["full_attention", "sliding_attention"], local_attention=6, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, cls_token_id=1, sep_token_id=2)),
    "pe_audio_video_encoder": _PE_BOTH,
    "qwen2_5_omni_dit": _DIT,
    "qwen2_5_omni_bigvgan": _BIGVGAN,
    "qwen2_5_omni_token2wav": dict(dit_config=_DIT, bigvgan_config=_BIGVGAN),
    "voxtral_realtime_text": dict(_TEXT, head_dim=16, sliding_window=6),
    "timm_backbone": dict(backbone="resnet18"),
}
