# SPDX-License-Identifier: Apache-2.0
"""What to call models with whose arguments' names do not tell their shapes: model type -> function of a configuration."""

BATCH, ROWS, PATCHES = 2, 14, 16


def _ids(*shape):
    import torch
    return torch.randint(8, 120, shape)


def _states(config):
    import torch
    drawn = {"states": config.state_dim, "actions": config.act_dim, "rewards": 1, "returns_to_go": 1}
    return dict({name: torch.randn(BATCH, 6, width) for name, width in drawn.items()},
                timesteps=torch.arange(6).repeat(BATCH, 1), attention_mask=torch.ones(BATCH, 6, dtype=torch.int64))


def _protein(config):
    from transformers.models.esmfold2.protein_utils import prepare_protein_features
    return dict(protein=prepare_protein_features("MKTAYIAKQRGW"))


def _flat_patches(width):
    """Each patch with its row and column in front."""
    import torch
    places = torch.cartesian_prod(torch.arange(1, 5), torch.arange(1, 5)).float()[None].repeat(BATCH, 1, 1)
    return torch.cat([places, torch.randn(BATCH, PATCHES, width)], -1)


def _images_among_text(config):
    """One image for each line, that all its rows see."""
    import torch
    pixels = config.vision_config.image_size
    return dict(input_ids=_ids(3, ROWS), pixel_values=torch.randn(3, 1, 3, pixels, pixels),
                image_attention_mask=torch.ones(3, ROWS, 1, dtype=torch.int64))


def _image_in_places(config):
    import torch
    pixels, places = config.vision_config.image_size, torch.zeros(3, ROWS, dtype=torch.bool)
    places[:, 2:2 + config.latent_query_num] = True
    return dict(input_ids=_ids(3, ROWS), pixel_values=torch.randn(3, 3, pixels, pixels), image_embeds_position_mask=places)


def _sounds_end_to_end(config):
    """Spectra of two sounds, one after the other."""
    import torch
    lengths = torch.tensor([2 * config.n_window, config.n_window])
    return dict(input_features=torch.randn(config.num_mel_bins, int(lengths.sum())), feature_lens=lengths,
                **({"aftercnn_lens": (lengths - 1) // 2 + 1} if "n_window_infer" not in vars(config) else {}))


def _whole_windows(config):
    import torch
    return dict(input_features=torch.randn(BATCH, config.num_mel_bins, 2 * config.n_window),
                input_features_mask=torch.ones(BATCH, 2 * config.n_window, dtype=torch.int64))


def _tiles(config):
    import torch
    pixels, tiles = config.image_size, config.max_num_tiles
    return dict(pixel_values=torch.randn(BATCH, 1, tiles, 3, pixels, pixels),
                aspect_ratio_ids=torch.ones(BATCH, 1, dtype=torch.int64),
                aspect_ratio_mask=torch.ones(BATCH, 1, tiles, dtype=torch.int64))


def _patches_and_grid(config):
    import torch
    width = 3 * config.patch_temporal * config.patch_size ** 2
    return dict(pixel_values=torch.randn(2 * PATCHES, width), grid_thw=torch.tensor([[1, 4, 4], [1, 4, 4]]))


def _images(pixels=128):
    import torch
    return lambda config: dict(pixel_values=torch.randn(BATCH, 3, pixels, pixels))


def _regions_and_words(config):
    """What DETR's parts of SAM 3 take: 16 places of an image and 5 words, of which the second line has 3."""
    import torch
    words = torch.ones(BATCH, 5, dtype=torch.bool)
    words[1, 3:] = False
    places = lambda: [torch.randn(BATCH, config.hidden_size, 4, 4)]  # noqa: E731
    return dict(vision_features=places(), vision_pos_embeds=places(), text_mask=words,
                text_features=torch.randn(BATCH, 5, config.hidden_size))


def _regions_decoded(config):
    import torch
    given = _regions_and_words(config)
    return dict(text_features=given["text_features"], text_mask=given["text_mask"],
                vision_features=torch.randn(BATCH, PATCHES, config.hidden_size),
                vision_pos_encoding=torch.randn(BATCH, PATCHES, config.hidden_size), spatial_shapes=torch.tensor([[4, 4]]))


def _masks_of_regions(config):
    import torch
    features = [torch.randn(BATCH, config.hidden_size, rows, rows) for rows in (16, 8, 4)]
    return dict(decoder_queries=torch.randn(BATCH, 8, config.hidden_size), backbone_features=features,
                encoder_hidden_states=torch.randn(BATCH, PATCHES, config.hidden_size),
                prompt_features=torch.randn(BATCH, 5, config.hidden_size))


def _drafted(config):
    """A draft model's: embeddings of the large model and its keys and values, of each kind of layer."""
    import torch
    text = config.text_config
    shared = lambda: tuple(torch.randn(3, text.num_key_value_heads, 9, 16) for _ in range(2))  # noqa: E731
    return dict(inputs_embeds=torch.randn(3, 1, 2 * config.backbone_hidden_size), position_ids=torch.full((3, 1), 9),
                attention_mask=torch.ones(3, 9, dtype=torch.int64),
                shared_kv_states={kind: shared() for kind in sorted(set(text.layer_types))})


def _noised_mel(config):
    """A spectrum and what it is made from, for a diffusion transformer."""
    import torch
    rows = 2 * config.block_size
    return dict(hidden_states=torch.randn(BATCH, rows, config.mel_dim), condition_vector=torch.randn(BATCH, rows, config.mel_dim),
                speaker_embedding=torch.randn(BATCH, rows, config.enc_emb_dim),
                quantized_code=_ids(BATCH, rows // config.repeats), time_step=torch.rand(BATCH), apply_cfg=False)


def _image_and_state(config):
    """A robot's: an image of four patches and ten words, and what the noise is made from."""
    import torch
    line = torch.cat([torch.full((3, 4), config.vlm_config.image_token_id), _ids(3, ROWS - 4)], 1)
    pixels = config.vlm_config.vision_config.image_size
    return dict(input_ids=line, pixel_values=torch.randn(3, 1, 3, pixels, pixels), state=torch.randn(3, config.max_state_dim),
                pixel_attention_mask=torch.ones(3, 1, dtype=torch.bool), timestep=torch.rand(3),
                noise=torch.randn(3, config.chunk_size, config.max_action_dim))


def _question_and_documents(config):
    import torch
    return dict(input_ids=_ids(3, ROWS), decoder_input_ids=_ids(3, ROWS - 3), doc_scores=torch.randn(3, config.n_docs),
                context_input_ids=_ids(3 * config.n_docs, ROWS),
                context_attention_mask=torch.ones(3 * config.n_docs, ROWS, dtype=torch.int64))


def _video_session(module, name):
    """Two frames, and a point of each of two things in the first."""
    def make(config):
        import importlib
        import torch
        code = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
        session = getattr(code, f"{name}InferenceSession")(torch.randn(2, 3, 128, 128), 128, 128, dtype=torch.float32)
        for thing, place in ((7, 30.0), (9, 90.0)):
            session.add_point_inputs(session.obj_id_to_idx(thing), 0, dict(
                point_coords=torch.full((1, 1, 1, 2), place), point_labels=torch.ones(1, 1, 1, dtype=torch.int32)))
        session.obj_with_new_inputs = [7, 9]
        return dict(inference_session=session)
    return make


def _makers():
    import torch
    channels = lambda config: getattr(config, "decoder_config", config).num_channels  # noqa: E731
    features = lambda width: torch.randn(BATCH, 64, width)  # noqa: E731
    return {
        "blt_local_encoder": lambda c: dict(input_ids=_ids(3, ROWS), num_patches=5,
                                            patch_ids=torch.arange(ROWS).div(3, rounding_mode="floor").repeat(3, 1)),
        "blt_local_decoder": lambda c: dict(inputs_embeds=torch.randn(3, ROWS, c.hidden_size),
                                            patch_embeds=torch.randn(3, 5, c.hidden_size_global)),
        **{name: _images() for name in ("depth_pro", "edgetam", "edgetam_vision_model", "lw_detr", "sam2",
                                        "sam2_vision_model", "sam2_hiera_det_model", "sam3_tracker")},
        "chmv2": _images(64),
        "decision_transformer": _states,
        "dia": lambda c: dict(input_ids=_ids(3, ROWS), decoder_input_ids=_ids(3, ROWS - 3, channels(c))),
        "dia_decoder": lambda c: dict(input_ids=_ids(3, ROWS, channels(c)),
                                      encoder_hidden_states=torch.randn(3, 9, c.cross_hidden_size)),
        "esmfold2": _protein,
        "efficientloftr": lambda c: dict(pixel_values=torch.randn(1, 2, 3, 64, 64)),
        "florence_vision": lambda c: dict(hidden_states=torch.randn(BATCH, 3, 64, 64)),
        "fun_asr_nano_encoder": lambda c: dict(input_features=features(c.input_size),
                                               input_features_mask=torch.ones(BATCH, 64, dtype=torch.int64)),
        "gemma4_assistant": _drafted,
        "gemma4_unified_assistant": _drafted,
        "granite_speech5_ctc": lambda c: dict(input_features=features(c.encoder_config.num_mel_bins * 4)),
        "granite_speech5_encoder": lambda c: dict(input_features=features(c.num_mel_bins * 4)),
        "granite_speech_encoder": lambda c: dict(hidden_states=features(c.input_dim)),
        "granite_speech_plus_encoder": lambda c: dict(hidden_states=features(c.input_dim)),
        "idefics": _images_among_text,
        "idefics2_perceiver": lambda c: dict(context=torch.randn(BATCH, PATCHES, c.hidden_size),
                                             attention_mask=torch.ones(BATCH, PATCHES, dtype=torch.int64)),
        "inkling_audio": lambda c: dict(audio_input_ids=torch.randint(0, 4, (BATCH, 8, c.n_mel_bins))),
        "inkling_vision": lambda c: dict(pixel_values=torch.randn(BATCH, c.temporal_patch_size, c.patch_size, c.patch_size, 3)),
        "janus_vqgan": _images(32),
        "kosmos-2": _image_in_places,
        "kosmos_2_5_vision_model": lambda c: dict(flattened_patches=_flat_patches(c.patch_embed_hidden_size)),
        "lw_detr_vit": lambda c: dict(hidden_states=torch.randn(BATCH * c.num_windows, PATCHES, c.hidden_size)),
        "mimi_decoder": lambda c: dict(latents=torch.randn(BATCH, c.hidden_size, 8)),
        "mllama_vision_model": _tiles,
        "molmo2_adapter": lambda c: dict(image_features=torch.randn(BATCH, PATCHES, 2 * c.hidden_size),
                                         pooled_patches_idx=torch.randint(-1, 2 * PATCHES, (6, 4))),
        "moshi_depth": lambda c: dict(input_ids=_ids(3, c.num_codebooks),
                                      last_hidden_state=torch.randn(3, 1, c.input_size)),
        "muse_glimmer_assistant": lambda c: dict(
            noise_embeds=torch.randn(3, c.block_size, c.hidden_size),
            attention_mask=torch.ones(3, 9 + c.block_size, dtype=torch.int64),
            context_hidden_states=torch.randn(3, 9, c.hidden_size * len(c.target_layer_ids))),
        "muse_glimmer_vision": _patches_and_grid,
        "muse_spark_vision": _patches_and_grid,
        "muse_spark_audio": lambda c: dict(input_values=torch.randn(BATCH, 1920 * 4)),
        **{name: lambda c: dict(input_values=torch.randn(BATCH, 1, 16 * 320), input_features=torch.randn(BATCH, 16, 160))
           for name in ("neucodec", "xcodec2")},
        "paddleocr_vl_vision": lambda c: dict(pixel_values=torch.randn(1, 2 * PATCHES, 3, c.patch_size, c.patch_size),
                                              grid_thw=torch.tensor([[1, 4, 4], [1, 4, 4]])),
        "pe_audio_video": lambda c: dict(input_ids=_ids(BATCH, ROWS), input_values=torch.randn(BATCH, 1, 128),
                                         pixel_values_videos=torch.randn(BATCH, 4, 3, 32, 32)),
        "pe_audio_video_encoder": lambda c: dict(input_values=torch.randn(BATCH, 1, 128),
                                                 pixel_values_videos=torch.randn(BATCH, 4, 3, 32, 32)),
        "phi4_multimodal_audio": lambda c: dict(hidden_states=features(c.input_size),
                                                mask=torch.ones(BATCH, 64, dtype=torch.bool)),
        "pi0": _image_and_state,
        "pix2struct": lambda c: dict(flattened_patches=_flat_patches(c.vision_config.patch_embed_hidden_size),
                                     decoder_input_ids=_ids(BATCH, ROWS - 3)),
        "pix2struct_vision_model": lambda c: dict(flattened_patches=_flat_patches(c.patch_embed_hidden_size)),
        "pocket_tts_audio_tokenizer_decoder": lambda c: dict(latents=torch.randn(BATCH, c.hidden_size, 8)),
        "qwen2_5_omni_audio_encoder": _sounds_end_to_end,
        "qwen2_5_omni_bigvgan": lambda c: dict(mel_spectrogram=torch.randn(1, c.mel_dim, 12)),
        "qwen2_5_omni_dit": _noised_mel,
        "qwen2_5_omni_token2wav": lambda c: dict(code=_ids(1, 8), conditioning=torch.randn(1, c.dit_config.enc_emb_dim),
                                                 reference_mel=torch.randn(1, 24, c.dit_config.mel_dim), num_steps=3),
        "qwen3_asr_encoder": _whole_windows,
        "qwen3_omni_moe_audio_encoder": _sounds_end_to_end,
        **{f"{name}_detr_encoder": _regions_and_words for name in ("sam3", "sam3_lite_text")},
        **{f"{name}_detr_decoder": _regions_decoded for name in ("sam3", "sam3_lite_text")},
        **{f"{name}_mask_decoder": _masks_of_regions for name in ("sam3", "sam3_lite_text")},
        "rag": _question_and_documents,
        **{name: lambda c: dict(input_ids=_ids(BATCH, 8), pixel_values=torch.randn(BATCH, 3, 128, 128))
           for name in ("sam3", "sam3_lite_text")},
        "edgetam_video": _video_session("edgetam_video", "EdgeTamVideo"),
        "sam2_video": _video_session("sam2_video", "Sam2Video"),
        "sam3_tracker_video": _video_session("sam3_tracker_video", "Sam3TrackerVideo"),
        "voxtral_realtime": lambda c: dict(input_ids=_ids(3, ROWS),
                                           input_features=torch.randn(3, c.audio_config.num_mel_bins, 8 * ROWS)),
        "voxtral_realtime_text": lambda c: dict(input_ids=_ids(3, ROWS), t_cond=torch.randn(3, 1, c.hidden_size)),
        "xclip_vision_model": lambda c: dict(pixel_values=torch.randn(2 * c.num_frames, 3, c.image_size, c.image_size)),
    }


def inputs_of_type(model_type, config):
    """Tensors by name; None for a type whose arguments' names tell enough."""
    import torch
    torch.manual_seed(1)
    make = _makers().get(model_type)
    return None if make is None else make(config)
