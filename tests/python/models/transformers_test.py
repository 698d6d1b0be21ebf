# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="mica" against eager, in models with random weights made from their configurations (no
download)."""

import copy
import os
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", minversion="4.57", reason="no transformers 4.57 or later here")

from transformers import masking_utils  # noqa: E402

import mica  # noqa: E402
import mica.integrations.transformers as mica_transformers  # noqa: E402

SMALL = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=None)


def causal_models():
    """Name -> configuration of a causal language model."""
    t = transformers
    yield "qwen3", t.Qwen3Config(num_hidden_layers=2, **SMALL)
    yield "gemma2: softcap, windows", t.Gemma2Config(
        num_hidden_layers=2, sliding_window=6, attn_logit_softcapping=3.0, query_pre_attn_scalar=16, **SMALL)
    yield "gpt-oss: sinks, windows", t.GptOssConfig(
        num_hidden_layers=2, sliding_window=6, num_local_experts=4, num_experts_per_tok=2, **SMALL)
    yield "phimoe: a window that only the mask names", t.PhimoeConfig(
        num_hidden_layers=1, sliding_window=6, num_local_experts=2, num_experts_per_tok=1, **SMALL)
    yield "llama4: chunks", t.Llama4TextConfig(
        num_hidden_layers=2, attention_chunk_size=8, num_local_experts=2, num_experts_per_tok=1,
        intermediate_size_mlp=96, no_rope_layers=[1, 0], **SMALL)


CAUSAL = dict(causal_models())
# Models of 4.57 that have their own list of implementations, closed to others.
OPEN_SINCE_5 = ("phimoe", "bert")


def build(config, implementation, dtype=torch.float32, kind=None):
    """The same weights for every implementation; evaluation mode."""
    if config.model_type in OPEN_SINCE_5 and transformers.__version__ < "5":
        pytest.skip(f"{config.model_type} takes no registered attention before Transformers 5")
    torch.manual_seed(0)
    kind = transformers.AutoModelForCausalLM if kind is None else kind
    make = kind.from_config if hasattr(kind, "from_config") else kind._from_config
    model = make(copy.deepcopy(config), attn_implementation=implementation).to(dtype).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model


def batch_with_padding(side, device="cpu", length=14):
    torch.manual_seed(1)
    ids = torch.randint(3, 97, (3, length), device=device)
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 5, 11)):
        mask[row, slice(0, padding) if side == "left" else slice(length - padding, length)] = 0
    return ids, mask


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_equal_eager(device, name, side):
    ids, mask = batch_with_padding(side, device)
    given = {} if side == "none" else dict(attention_mask=mask)
    used = torch.ones_like(mask, dtype=torch.bool) if side == "none" else mask.bool()
    with torch.no_grad():
        want, got = (build(CAUSAL[name], impl).to(device)(ids, **given).logits[used] for impl in ("eager", "mica"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def generate_eagerly(config, ids, device, **options):
    """Eager's tokens. Skips the test where Transformers itself cannot make the mask, whatever the implementation: in
    5.17 generate hands all its mask functions an argument that the one of chunks does not take."""
    model = build(config, "eager").to(device)
    try:
        return model.generate(ids, **options)
    except TypeError as error:
        if "create_chunked_causal_mask() got an unexpected keyword argument" not in str(error):
            raise
        pytest.skip(f"eager fails as well in Transformers {transformers.__version__}: {error}")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", CAUSAL)
def test_greedy_generation_equals_eager(device, name, cache):
    ids, mask = batch_with_padding("left", device)
    options = dict(max_new_tokens=8, do_sample=False, attention_mask=mask, pad_token_id=0, eos_token_id=None)
    if cache == "static":
        options.update(cache_implementation="static", disable_compile=True)
    want = generate_eagerly(CAUSAL[name], ids, device, **options)
    got = build(CAUSAL[name], "mica").to(device).generate(ids, **options)
    assert want.shape == (3, 22) and torch.equal(got, want)


def twice_eager(config, ids, device="cpu", **given):
    """Errors of bf16 logits, mica's and eager's, against the same weights in double (fp32 where experts take none).

    Not for padding on the left: see exact_logits in transformers_flash_test.py."""
    exact_type = torch.float32 if config.model_type == "gpt_oss" else torch.float64
    with torch.no_grad():
        exact = build(config, "eager", torch.bfloat16).to(exact_type).to(device)(ids, **given).logits
        rounded = [build(config, impl, torch.bfloat16).to(device)(ids, **given).logits for impl in ("mica", "eager")]
    return [(logits.double() - exact).abs().max().item() for logits in rounded]


@pytest.mark.parametrize("name", ["qwen3", "gemma2: softcap, windows", "gpt-oss: sinks, windows"])
def test_bf16_logits_within_twice_the_error_of_eager(device, name):
    ids, _ = batch_with_padding("none", device, length=40)
    mine, eagers = twice_eager(CAUSAL[name], ids, device)
    assert 0 < eagers and mine <= 2 * eagers


def qwen3_06b(layers):
    """Qwen3 0.6B's shape, with a small vocabulary."""
    return transformers.Qwen3Config(
        vocab_size=500, hidden_size=1024, intermediate_size=3072, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, rope_theta=1e6, eos_token_id=None, bos_token_id=None)


@pytest.mark.parametrize("layers", [1, pytest.param(28, marks=pytest.mark.skipif(
    not os.environ.get("MICA_TEST_ALL"), reason="make test-all runs all 28 layers"))])
def test_the_shape_of_qwen3_06b(device, layers):
    config = qwen3_06b(layers)
    torch.manual_seed(1)
    ids = torch.randint(0, 500, (1, 33), device=device)
    mine, eagers = twice_eager(config, ids, device)
    assert mine <= 2 * eagers
    options = dict(max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    want, got = (build(config, impl).to(device).generate(ids, **options) for impl in ("eager", "mica"))
    assert torch.equal(got, want)


def test_packed_rows_by_position_ids_and_by_cu_seq_lens():
    lengths = (5, 9, 3)
    torch.manual_seed(1)
    ids = torch.randint(3, 97, (1, sum(lengths)))
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    cu = torch.tensor([0, *lengths]).cumsum(0)
    for name in ("qwen3", "gemma2: softcap, windows", "gpt-oss: sinks, windows"):
        model = build(CAUSAL[name], "mica")
        eager = build(CAUSAL[name], "eager")
        with torch.no_grad():
            want = torch.cat([eager(part).logits for part in ids.split(lengths, 1)], 1)
            # NOTE: gpt-oss makes its masks without position_ids, so that its packed rows see each other, in eager too.
            want_by_positions = eager(ids, position_ids=positions, use_cache=False).logits
            by_positions = model(ids, position_ids=positions, use_cache=False).logits
            by_lengths = model(ids, position_ids=positions, use_cache=False, cu_seq_lens_q=cu, cu_seq_lens_k=cu,
                               max_length_q=9, max_length_k=9).logits
        torch.testing.assert_close(by_positions, want_by_positions, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(by_lengths, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["qwen3", "gemma2: softcap, windows"])
def test_cu_seq_lens_of_several_packed_rows(name):
    """They count through the batch, as Transformers' own flash functions have it."""
    lengths = (5, 9, 2, 12)
    torch.manual_seed(1)
    ids = torch.randint(3, 97, (2, 14))
    cu = torch.tensor([0, *lengths]).cumsum(0)
    module = types.SimpleNamespace(is_causal=True)
    with torch.no_grad():
        want = torch.cat([build(CAUSAL[name], "eager")(part).logits for part in ids.view(1, -1).split(lengths, 1)], 1)
        got = build(CAUSAL[name], "mica")(ids, use_cache=False, cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=12,
                                          max_length_k=12).logits
        torch.testing.assert_close(got.view_as(want), want, rtol=1e-4, atol=1e-5)
        tensors = [torch.randn(2, 4, 14, 16) for _ in range(3)]
        got = mica_transformers.attention(module, *tensors, None, cu_seq_lens_q=cu, cu_seq_lens_k=cu)[0]
        packed = [t.transpose(1, 2).reshape(28, 4, 16) for t in tensors]
        torch.testing.assert_close(got.flatten(0, 1), mica.attention_varlen(*packed, cu, cu, causal=True))
        with pytest.raises(mica.Unsupported, match="^cu_seq_lens_q is given with position_bias and a batch of 2, want"):
            mica_transformers.attention(module, *tensors, None, cu_seq_lens_q=cu, cu_seq_lens_k=cu, position_bias=torch.randn(1, 4, 14, 14))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 3])
def test_packed_rows_with_a_position_bias_have_their_own_diagonals(causal, window):
    torch.manual_seed(1)
    cu_q, cu_k = torch.tensor([0, 2, 6]), torch.tensor([0, 7, 12])
    q, k, v = (torch.randn(1, 4, count, 16) for count in (6, 12, 12))
    bias = torch.randn(1, 4, 6, 12)
    side = None if window is None else window - 1
    want = []
    for rows, keys in ((slice(0, 2), slice(0, 7)), (slice(2, 6), slice(7, 12))):
        parts = (t.transpose(1, 2)[:, part] for t, part in ((q, rows), (k, keys), (v, keys)))
        want.append(mica.attention(*parts, causal=causal, window=(side, None if causal else side), bias=bias[:, :, rows, keys]))
    got = mica_transformers.attention(types.SimpleNamespace(is_causal=causal), q, k, v, None, sliding_window=window,
                                      position_bias=bias, cu_seq_lens_q=cu_q, cu_seq_lens_k=cu_k)[0]
    torch.testing.assert_close(got, torch.cat(want, 1))


@pytest.mark.parametrize("name", ["gemma2: softcap, windows", "gpt-oss: sinks, windows"])
def test_gradients_equal_eager(name):
    ids, mask = batch_with_padding("right")
    labels = ids.masked_fill(mask == 0, -100)
    grads = []
    for impl in ("eager", "mica"):
        model = build(CAUSAL[name], impl).train()
        model(ids, attention_mask=mask, labels=labels).loss.backward()
        grads.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys() and any("q_proj" in n for n in grads[0])
    assert "gpt" not in name or any(n.endswith("sinks") for n in grads[1])
    for n, want in grads[0].items():
        torch.testing.assert_close(grads[1][n], want, rtol=2e-3, atol=2e-5, msg=lambda text: f"{n}: {text}")


def test_a_vision_tower():
    config = transformers.SiglipVisionConfig(hidden_size=72, intermediate_size=96, num_hidden_layers=2,
                                             num_attention_heads=3, image_size=32, patch_size=8)
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        want, got = (build(config, impl, kind=transformers.SiglipVisionModel)(pixels).last_hidden_state
                     for impl in ("eager", "mica"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_vision_tower_with_packed_images_and_windows():
    config = transformers.Qwen2_5_VLConfig().vision_config
    values = dict(depth=2, hidden_size=64, intermediate_size=96, num_heads=4, out_hidden_size=48, patch_size=4,
                  window_size=32, fullatt_block_indexes=[1])
    for name, value in values.items():
        setattr(config, name, value)
    kind = transformers.models.qwen2_5_vl.modeling_qwen2_5_vl.Qwen2_5_VisionTransformerPretrainedModel
    grid = torch.tensor([[2, 8, 12], [1, 8, 8]])  # a film of two frames and an image
    patches = torch.randn(256, 3 * 2 * 4 * 4)
    with torch.no_grad():
        want, got = (build(config, impl, kind=kind)(patches, grid) for impl in ("eager", "mica"))
    torch.testing.assert_close(got if torch.is_tensor(got) else got[0], want if torch.is_tensor(want) else want[0],
                               rtol=1e-4, atol=1e-5)


def test_an_encoder_with_padding():
    config = transformers.BertConfig(vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                     intermediate_size=96)
    ids, mask = batch_with_padding("right")
    with torch.no_grad():
        want, got = (build(config, impl, kind=transformers.BertModel)(ids, attention_mask=mask).last_hidden_state
                     for impl in ("eager", "mica"))
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], rtol=1e-4, atol=1e-5)


def attention_masks(model, ids, **given):
    """The masks that the attention function is called with."""
    seen = []

    def spy(module, query, key, value, attention_mask, **kwargs):
        seen.append(None if attention_mask is None else tuple(attention_mask.shape))
        return mica_transformers.attention(module, query, key, value, attention_mask, **kwargs)

    transformers.AttentionInterface.register("mica", spy)
    try:
        with torch.no_grad():
            model(ids, **given)
    finally:
        mica_transformers.register()
    return seen


def test_masks_stay_small():
    ids, mask = batch_with_padding("left")
    model = build(CAUSAL["gemma2: softcap, windows"], "mica")
    assert attention_masks(model, ids) == [None, None]
    assert attention_masks(model, ids, attention_mask=torch.ones_like(mask)) == [None, None]
    assert attention_masks(model, ids, attention_mask=mask) == [(3, 1, 1, 14)] * 2


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_an_encoder_with_windows_to_both_sides(side):
    config = transformers.ModernBertConfig(
        vocab_size=97, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, local_attention=8,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    if not hasattr(masking_utils, "sliding_window_bidirectional_overlay"):
        pytest.skip("this Transformers has no masks of that kind")
    ids, mask = batch_with_padding(side, length=40)
    models = {impl: build(config, impl, kind=transformers.ModernBertModel) for impl in ("eager", "mica")}
    with torch.no_grad():
        want, got = (model(ids, attention_mask=mask).last_hidden_state for model in models.values())
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], rtol=1e-4, atol=1e-5)
    seen = attention_masks(models["mica"], ids, attention_mask=mask)
    assert seen[1:] == [(3, 1, 1, 40)] * 2


@pytest.mark.parametrize("padded", [False, True])
def test_a_copy_of_a_window_to_both_sides_says_the_same(padded):
    """As on its way to another device. T5Gemma's modules name the window as the mask does, ModernBERT's count the row itself."""
    padding = torch.arange(9)[None] >= (3 if padded else 0)
    made = mica_transformers._both_sides(2, 1, 9, padding, "cpu")
    q, k, v = (torch.randn(1, 2, 9, 16) for _ in range(3))
    module = torch.nn.Module()
    distance = (torch.arange(9)[:, None] - torch.arange(9)).abs()
    want = mica.attention(*(t.transpose(1, 2) for t in (q, k, v)), mask=(distance <= 2) & padding)
    for named in (None, 2, 3):
        for mask in (made, made.clone()):
            torch.testing.assert_close(mica_transformers.attention(module, q, k, v, mask, sliding_window=named)[0], want)
    hidden = torch.zeros_like(made)
    assert mica_transformers.attention(module, q, k, v, hidden)[0].eq(0).all()


def test_a_window_that_only_the_mask_names_is_in_the_mask():
    model = build(CAUSAL["phimoe: a window that only the mask names"], "mica")
    assert attention_masks(model, batch_with_padding("none")[0]) == [(3, 1, 14, 14)]


@pytest.mark.skipif(torch.__version__ < "2.5", reason="Transformers' masks are not for the torch.compile of PyTorch 2.4")
def test_a_model_compiles_as_one_graph():
    torch._dynamo.reset()
    ids, mask = batch_with_padding("left")
    config = copy.deepcopy(CAUSAL["gemma2: softcap, windows"])
    config.num_hidden_layers, config.layer_types = 1, ["sliding_attention"]
    model = build(config, "mica")
    with torch.no_grad():
        want = model(ids, attention_mask=mask, use_cache=False).logits
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        got = compiled(ids, attention_mask=mask, use_cache=False).logits
    used = mask.bool()
    torch.testing.assert_close(got[used], want[used], rtol=1e-4, atol=1e-5)


def test_names_with_a_meaning_of_their_own_are_refused():
    with pytest.raises(ValueError, match="want one without 'flash'"):
        mica_transformers.register("mica_flash")
    assert "mica" in masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.valid_keys()
