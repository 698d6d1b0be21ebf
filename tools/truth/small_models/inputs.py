# SPDX-License-Identifier: Apache-2.0
"""What to call a small model with: tensors by the names of forward's arguments."""

import inspect

from .inputs_of_types import inputs_of_type
from .sizes import HIDDEN, VOCABULARY

ROWS = 14
TEXT_BATCH, IMAGE_BATCH = 3, 2
GRID = [[1, 4, 4], [1, 4, 4]]  # frames, rows and columns of patches of each image


def find(config, *names):
    """The first of these numbers in a configuration or those within it."""
    for name in names:
        try:
            value = getattr(config, name, None)
        except RuntimeError:  # differs from layer to layer
            continue
        if isinstance(value, (int, list, tuple)) and not isinstance(value, bool) and value:
            return value
    for value in vars(config).values():
        if hasattr(value, "to_dict"):
            found = find(value, *names)
            if found:
                return found
    return None


def _number(config, default, *names):
    value = find(config, *names)
    return value if isinstance(value, int) else value[0] if value and isinstance(value[0], int) else default


class _Sizes:
    """What the makers need to know of a configuration."""

    def __init__(self, config):
        pixels = find(config, "image_size", "img_size", "input_size") or 32
        self.height, self.width = (pixels[0], pixels[-1]) if isinstance(pixels, (list, tuple)) else (pixels, pixels)
        channels = find(config, "num_channels", "in_channels", "in_chans") or 3
        self.channels = channels if isinstance(channels, int) else 3
        self.patch = _number(config, 8, "patch_size", "spatial_patch_size")
        self.patch_in_time = _number(config, 1, "temporal_patch_size")
        self.frames = _number(config, 4, "num_frames", "frames_per_clip")
        self.bins = _number(config, 80, "num_mel_bins", "feature_size", "input_dim", "input_feat_size", "n_mels")
        self.length = 2 * _number(config, 64, "max_source_positions")
        self.hidden = _number(config, HIDDEN, "hidden_size", "d_model")
        self.config = config


def _ids(batch, rows):
    import torch
    return torch.randint(8, VOCABULARY - 8, (batch, rows))


def _patches(s, batch=None):
    """Flat patches, as towers that take a grid want them."""
    import torch
    count = sum(t * h * w for t, h, w in GRID)
    width = s.channels * s.patch_in_time * s.patch ** 2
    return torch.randn(count, width) if batch is None else torch.randn(batch, count // batch, width)


def _makers():
    """Name of an argument -> ways to make it, the usual one first."""
    import torch
    images = lambda s: torch.randn(IMAGE_BATCH, s.channels, s.height, s.width)  # noqa: E731
    video = lambda s: torch.randn(IMAGE_BATCH, s.frames, s.channels, s.height, s.width)  # noqa: E731
    grid = lambda s: torch.tensor(GRID)  # noqa: E731
    return {
        "input_ids": [lambda s: _ids(TEXT_BATCH, ROWS)],
        "pixel_values": [images, video, lambda s: _patches(s), lambda s: _patches(s, IMAGE_BATCH),
                         lambda s: torch.randn(IMAGE_BATCH, s.channels, 64, 64),
                         lambda s: torch.randn(IMAGE_BATCH, s.channels, 224, 224),
                         lambda s: _patches(s)[:, None].reshape(-1, s.channels, s.patch, s.patch)],
        "pixel_values_videos": [video, lambda s: _patches(s)],
        "hidden_states": [lambda s: _patches(s), lambda s: torch.randn(IMAGE_BATCH, ROWS, s.hidden)],
        "inputs_embeds": [lambda s: torch.randn(IMAGE_BATCH, ROWS, s.hidden)],
        "grid_thw": [grid], "image_grid_thw": [grid], "grid_hws": [lambda s: torch.tensor(GRID)[:, 1:]],
        "target_sizes": [lambda s: torch.tensor(GRID)[:, 1:]],
        "spatial_shapes": [lambda s: torch.tensor(GRID)[:, 1:]],
        "merge_sizes": [lambda s: torch.tensor([2, 2]), lambda s: torch.tensor([1, 1])],
        "pixel_attention_mask": [lambda s: torch.ones(IMAGE_BATCH, 16, dtype=torch.int64)],
        "pixel_position_ids": [lambda s: torch.cartesian_prod(torch.arange(4), torch.arange(4))[None].repeat(2, 1, 1)],
        "query_embeds": [lambda s: torch.randn(IMAGE_BATCH, 8, s.hidden)],
        "encoder_hidden_states": [lambda s: torch.randn(IMAGE_BATCH, 16, _number(s.config, s.hidden, "encoder_hidden_size"))],
        "qformer_input_ids": [lambda s: _ids(TEXT_BATCH, ROWS)],
        "bbox": [lambda s: torch.randint(0, 50, (TEXT_BATCH, ROWS, 4)).sort(-1).values],
        "input_values": [lambda s: torch.randn(2, 4000), lambda s: torch.randn(2, 1, 4000),
                         lambda s: torch.randn(2, _number(s.config, 64, "max_length"), s.bins),
                         lambda s: torch.randn(2, 16000)],
        "input_features": [lambda s: torch.randn(2, s.bins, s.length), lambda s: torch.randn(2, 64, s.bins),
                           lambda s: torch.randn(2, 64, 2 * s.bins), lambda s: torch.randn(2, s.bins, 64),
                           lambda s: torch.randn(2, 128, 128)],
        "input_features_mask": [lambda s: torch.ones(2, 64, dtype=torch.int64),
                                lambda s: torch.ones(2, s.length, dtype=torch.int64)],
        "audio_mel": [lambda s: torch.randn(2, 64, s.bins)],
        "audio_mel_mask": [lambda s: torch.zeros(2, 64, dtype=torch.bool)],
        "past_values": [lambda s: torch.randn(2, _number(s.config, 32, "context_length"),
                                              _number(s.config, 1, "num_input_channels")),
                        lambda s: torch.randn(2, _number(s.config, 32, "context_length"))],
        "past_values_padding": [lambda s: torch.zeros(2, _number(s.config, 32, "context_length"), dtype=torch.int64)],
        "freq": [lambda s: torch.zeros(2, 1, dtype=torch.int64)],
        "state": [lambda s: torch.randn(TEXT_BATCH, _number(s.config, 32, "max_state_dim"))],
    }


# Arguments beyond the required ones that are tried, one set after the other.
SETS = [(), ("pixel_values",), ("input_features",), ("input_values",), ("inputs_embeds",), ("pixel_values_videos",),
        ("pixel_values", "pixel_attention_mask", "spatial_shapes"), ("pixel_values", "target_sizes"),
        ("pixel_values", "image_grid_thw"), ("bbox",), ("pixel_values", "bbox"), ("input_features", "input_features_mask"),
        ("encoder_hidden_states",)]


def candidates(model, model_type):
    """Dictionaries to call the model with, the plainest first: text alone where there is text; with an image or a sound
    where nothing else goes."""
    import torch
    known = inputs_of_type(model_type, model.config)
    if known is not None:
        yield known
    makers, sizes = _makers(), _Sizes(model.config)
    arguments = inspect.signature(model.forward).parameters
    required = [name for name, p in arguments.items()
                if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    main = getattr(model, "main_input_name", "input_ids")
    lead = [name for name in ("input_ids", main) if name in arguments and name in makers][:1]
    wanted = []
    for more in SETS:
        for names in ([*lead, *more], list(more)):
            names = list(dict.fromkeys([*names, *required]))
            if names and names not in wanted and all(name in arguments and name in makers for name in names):
                wanted.append(names)
    for names in wanted:
        for variant in range(max(len(makers[name]) for name in names)):
            torch.manual_seed(1)
            made = {name: makers[name][min(variant, len(makers[name]) - 1)](sizes) for name in names}
            if "input_ids" in made:  # one of each image or feature for every row of text
                made = {k: v if v.shape[0] != IMAGE_BATCH else torch.cat([v, v[:1]]) for k, v in made.items()}
            if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in arguments:
                made["decoder_input_ids"] = _ids(next(iter(made.values())).shape[0], ROWS - 3)
            yield made
    yield from with_an_image_or_sound(model).values()


def _rows_of(features, width):
    """How many tokens an encoder made, whatever it returns them in."""
    import torch
    features = getattr(features, "pooler_output", features)
    if torch.is_tensor(features):
        return features.numel() // width if features.shape[-1] == width else 0
    if isinstance(features, (tuple, list)):
        return sum(_rows_of(part, width) for part in features)
    return 0


def _with_placeholders(model, encode, token, extra):
    """Text with as many placeholders as the encoder makes rows, one image or sound for each line of it; or None."""
    import torch
    arguments = inspect.signature(model.forward).parameters
    width = model.get_input_embeddings().weight.shape[1]
    takes = inspect.signature(encode).parameters
    with torch.no_grad():
        rows = _rows_of(encode(**{k: v for k, v in extra.items() if k in takes}), width)
    if rows == 0 or rows % IMAGE_BATCH:
        return None
    start = _number(model.config, 4, "vision_start_token_id", "image_start_token_id")
    line = torch.cat([_ids(IMAGE_BATCH, 3), torch.full((IMAGE_BATCH, 1), start),
                      torch.full((IMAGE_BATCH, rows // IMAGE_BATCH), token), _ids(IMAGE_BATCH, 5)], 1)
    made = dict(input_ids=line, attention_mask=torch.ones_like(line), **extra)
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in arguments:
            made[name] = (line == token).long()
    return {k: v for k, v in made.items() if k in arguments}


def with_an_image_or_sound(model):
    """Name -> what to call the model with, for the senses that it has besides text."""
    import torch
    makers, sizes, found = _makers(), _Sizes(model.config), {}
    for sense, encoder, tokens, given in (
            ("image", "get_image_features", ("image_token_id", "image_token_index"), ("pixel_values", "image_grid_thw")),
            ("audio", "get_audio_features", ("audio_token_id", "audio_token_index"),
             ("input_features", "input_features_mask"))):
        token, encode = find(model.config, *tokens), getattr(model, encoder, None) or getattr(
            getattr(model, "model", None), encoder, None)
        if not isinstance(token, int) or encode is None:
            continue
        takes = inspect.signature(encode).parameters
        names = [name for name in given if name in takes]
        for variant in range(max([len(makers[name]) for name in names] or [0])):
            torch.manual_seed(1)
            extra = {name: makers[name][min(variant, len(makers[name]) - 1)](sizes) for name in names}
            if "image_sizes" in takes:
                extra["image_sizes"] = torch.tensor([[sizes.height, sizes.width]] * IMAGE_BATCH)
            try:
                made = _with_placeholders(model, encode, token, extra)
                if made is not None:
                    with torch.no_grad():
                        model(**made)
                    found[sense] = made
                    break
            except Exception:  # noqa: BLE001 - the next variant may fit
                continue
    return found
