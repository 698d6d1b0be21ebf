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


def _makers():
    import torch
    channels = lambda config: getattr(config, "decoder_config", config).num_channels  # noqa: E731
    features = lambda width: torch.randn(BATCH, 64, width)  # noqa: E731
    return {
        "decision_transformer": _states,
        "dia": lambda c: dict(input_ids=_ids(3, ROWS), decoder_input_ids=_ids(3, ROWS - 3, channels(c))),
        "dia_decoder": lambda c: dict(input_ids=_ids(3, ROWS, channels(c)),
                                      encoder_hidden_states=torch.randn(3, 9, c.cross_hidden_size)),
        "efficientloftr": lambda c: dict(pixel_values=torch.randn(1, 2, 3, 64, 64)),
        "florence_vision": lambda c: dict(hidden_states=torch.randn(BATCH, 3, 64, 64)),
        "fun_asr_nano_encoder": lambda c: dict(input_features=features(c.input_size),
                                               input_features_mask=torch.ones(BATCH, 64, dtype=torch.int64)),
        "granite_speech5_ctc": lambda c: dict(input_features=features(c.encoder_config.num_mel_bins * 4)),
        "granite_speech5_encoder": lambda c: dict(input_features=features(c.num_mel_bins * 4)),
        "granite_speech_encoder": lambda c: dict(hidden_states=features(c.input_dim)),
        "granite_speech_plus_encoder": lambda c: dict(hidden_states=features(c.input_dim)),
        "idefics": _images_among_text,
        "idefics2_perceiver": lambda c: dict(context=torch.randn(BATCH, PATCHES, c.hidden_size),
                                             attention_mask=torch.ones(BATCH, PATCHES, dtype=torch.int64)),
        "inkling_audio": lambda c: dict(audio_input_ids=torch.randint(0, 4, (BATCH, 8, c.n_mel_bins))),
        "kosmos-2": _image_in_places,
        "kosmos_2_5_vision_model": lambda c: dict(flattened_patches=_flat_patches(c.patch_embed_hidden_size)),
        "lw_detr_vit": lambda c: dict(hidden_states=torch.randn(BATCH * c.num_windows, PATCHES, c.hidden_size)),
        **{name: lambda c: dict(pixel_values=torch.randn(BATCH, 3, 128, 128))
           for name in ("sam2", "sam2_vision_model", "sam2_hiera_det_model")},
        "mimi_decoder": lambda c: dict(latents=torch.randn(BATCH, c.hidden_size, 8)),
        "mllama_vision_model": _tiles,
        "moshi_depth": lambda c: dict(input_ids=_ids(3, c.num_codebooks),
                                      last_hidden_state=torch.randn(3, 1, c.input_size)),
        "muse_glimmer_vision": _patches_and_grid,
        "muse_spark_vision": _patches_and_grid,
        "muse_spark_audio": lambda c: dict(input_values=torch.randn(BATCH, 1920 * 4)),
        "paddleocr_vl_vision": lambda c: dict(pixel_values=torch.randn(1, 2 * PATCHES, 3, c.patch_size, c.patch_size),
                                              grid_thw=torch.tensor([[1, 4, 4], [1, 4, 4]])),
        "phi4_multimodal_audio": lambda c: dict(hidden_states=features(c.input_size),
                                                mask=torch.ones(BATCH, 64, dtype=torch.bool)),
        "pix2struct": lambda c: dict(flattened_patches=_flat_patches(c.vision_config.patch_embed_hidden_size),
                                     decoder_input_ids=_ids(BATCH, ROWS - 3)),
        "pix2struct_vision_model": lambda c: dict(flattened_patches=_flat_patches(c.patch_embed_hidden_size)),
        "pocket_tts_audio_tokenizer_decoder": lambda c: dict(latents=torch.randn(BATCH, c.hidden_size, 8)),
        "qwen2_5_omni_audio_encoder": _sounds_end_to_end,
        "qwen3_asr_encoder": _whole_windows,
        "qwen3_omni_moe_audio_encoder": _sounds_end_to_end,
        "xclip_vision_model": lambda c: dict(pixel_values=torch.randn(2 * c.num_frames, 3, c.image_size, c.image_size)),
    }


def inputs_of_type(model_type, config):
    """Tensors by name; None for a type whose arguments' names tell enough."""
    import torch
    torch.manual_seed(1)
    make = _makers().get(model_type)
    return None if make is None else make(config)
