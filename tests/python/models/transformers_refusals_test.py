# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="mica": every argument of the attention function is used or refused by name, and a model that
cannot be served says so."""

import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", minversion="4.57", reason="no transformers 4.57 or later here")

import mica.integrations.transformers as mica_transformers  # noqa: E402
from transformers_test import CAUSAL, SMALL, batch_with_padding, build  # noqa: E402

T5 = dict(vocab_size=97, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0,
          relative_attention_num_buckets=8, dropout_rate=0.0)


class Module(torch.nn.Module):
    is_causal = False


def call(**kwargs):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    given = dict(attention_mask=None, **kwargs)
    return mica_transformers.attention(Module(), q, k, v, **given)[0]


@pytest.mark.parametrize("name", ["indices", "block_indices", "head_mask", "cache", "something_new"])
def test_an_argument_that_is_not_used_is_refused_by_name(name):
    with pytest.raises(NotImplementedError, match=name):
        call(**{name: torch.zeros(2, 6, 3, dtype=torch.int64)})
    call(**{name: None})


def test_arguments_that_say_nothing_of_attention_are_taken():
    torch.testing.assert_close(call(position_ids=torch.arange(6)[None], use_cache=True, output_attentions=False,
                                    num_items_in_batch=torch.tensor(3)), call())
    torch.testing.assert_close(call(logits_to_keep=1, input_ids=torch.arange(6)[None]), call())  # LLaVA-OneVision, GLM-5
    torch.testing.assert_close(call(vision_feature_layer=[1, 0], vision_feature_select_strategy="full"), call())  # Molmo2


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_a_mask_of_all_pairs_says_it_all_in_every_type(dtype):
    """uint8 and int16 are also the types of masks that are made here, which a causal mask or a window goes with."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    seen = (torch.rand(2, 1, 6, 6) < 0.7) | torch.eye(6, dtype=torch.bool)
    want = mica_transformers.attention(Module(), q, k, v, seen)[0]
    assert torch.equal(mica_transformers.attention(Module(), q, k, v, seen.to(dtype))[0], want)


@pytest.mark.parametrize("kind", ["T5", "MT5", "UMT5"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_position_bias_is_a_bias_with_a_gradient(kind, side):
    config = getattr(transformers, f"{kind}Config")(**T5)
    if transformers.__version__ < "5":  # where it computes its attention itself
        with pytest.raises(ValueError, match="attn_implementation is 'mica'.*want 'eager'"):
            build(config, "mica", kind=getattr(transformers, f"{kind}ForConditionalGeneration"))
        return
    ids, mask = batch_with_padding(side)
    labels = ids.masked_fill(mask == 0, -100)
    outputs, grads = [], []
    for impl in ("eager", "mica"):
        model = build(config, impl, kind=getattr(transformers, f"{kind}ForConditionalGeneration")).train()
        out = model(input_ids=ids, attention_mask=mask, labels=labels)
        out.loss.backward()
        outputs.append(out.logits.detach())
        grads.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
    assert any("relative_attention_bias" in name for name in grads[1]) and grads[0].keys() == grads[1].keys()
    for name, want in grads[0].items():
        torch.testing.assert_close(grads[1][name], want, rtol=2e-3, atol=2e-5, msg=lambda text: f"{name}: {text}")


OLD_MASKS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6)


def packed(lengths=(15, 9, 3)):
    torch.manual_seed(1)
    ids = torch.randint(3, 97, (1, sum(lengths)))
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    return ids, positions, torch.tensor([0, *lengths]).cumsum(0), lengths


@pytest.mark.parametrize("name", ["phimoe: a window that only the mask names", "llama4: chunks"])
@pytest.mark.parametrize("with_positions", [True, False])
def test_a_window_that_only_the_mask_names_holds_in_packed_rows(name, with_positions):
    if with_positions and OLD_MASKS:
        pytest.skip("eager's masks do not know packed rows before PyTorch 2.6")
    ids, positions, cu, lengths = packed()
    eager, model = build(CAUSAL[name], "eager"), build(CAUSAL[name], "mica")
    with torch.no_grad():
        # Without positions the rotary ones run on: the first sequence alone is the same.
        want = eager(ids, position_ids=positions, use_cache=False).logits if with_positions else eager(
            ids[:, :lengths[0]]).logits
        got = model(ids, position_ids=positions if with_positions else None, use_cache=False, cu_seq_lens_q=cu,
                    cu_seq_lens_k=cu, max_length_q=15, max_length_k=15).logits[:, :want.shape[1]]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


SDPA_REFUSES = dict(
    bloom=("BloomConfig", dict(vocab_size=97, hidden_size=64, n_layer=1, n_head=4)),
    xglm=("XGLMConfig", dict(vocab_size=97, d_model=64, ffn_dim=96, num_layers=1, attention_heads=4)),
    mpt=("MptConfig", dict(vocab_size=97, d_model=64, n_heads=4, n_layers=1)),
    rembert=("RemBertConfig", dict(vocab_size=97, hidden_size=64, num_hidden_layers=1, num_attention_heads=4,
                                   input_embedding_size=32, output_embedding_size=32, intermediate_size=96)),
    roformer=("RoFormerConfig", dict(vocab_size=97, hidden_size=64, num_hidden_layers=1, num_attention_heads=4,
                                     intermediate_size=96)),
)


@pytest.mark.parametrize("name", SDPA_REFUSES)
def test_a_model_that_sdpa_is_refused_for_is_refused(name):
    kind, values = SDPA_REFUSES[name]
    config = getattr(transformers, kind)(**values)
    with pytest.raises(ValueError, match="does not support"):
        build(config, "sdpa")
    with pytest.raises(ValueError, match="attn_implementation is 'mica'.*want 'eager'"):
        build(config, "mica")


@pytest.mark.parametrize("kind, values", [
    ("FalconConfig", dict(vocab_size=97, hidden_size=64, num_hidden_layers=1, num_attention_heads=4)),
    ("GPTJConfig", dict(vocab_size=97, n_embd=64, n_layer=1, n_head=4, rotary_dim=8)),
    ("GPTNeoConfig", dict(vocab_size=97, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global"], 2]])),
])
def test_a_model_with_a_list_of_its_own_says_so(kind, values):
    with pytest.raises(ValueError, match="attn_implementation is 'mica'.*want 'eager'"):
        build(getattr(transformers, kind)(**values), "mica")


def test_a_model_that_cannot_be_served_is_refused_later_too():
    config = transformers.NllbMoeConfig(vocab_size=97, d_model=64, encoder_layers=1, decoder_layers=1,
                                        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96,
                                        decoder_ffn_dim=96, num_experts=2)
    model = build(config, "eager", kind=transformers.NllbMoeModel)
    with pytest.raises(ValueError, match="attn_implementation is 'mica'.*want 'eager'"):
        model.set_attn_implementation("mica")


def test_attention_weights_are_refused():
    model = build(CAUSAL["qwen3"], "mica")
    ids, _ = batch_with_padding("none")
    with torch.no_grad(), pytest.raises(NotImplementedError, match="output_attentions"):
        model(ids, output_attentions=True)
    siglip = transformers.SiglipVisionConfig(hidden_size=72, intermediate_size=96, num_hidden_layers=1,
                                             num_attention_heads=3, image_size=32, patch_size=8)
    tower = build(siglip, "mica", kind=transformers.SiglipVisionModel)
    with torch.no_grad(), pytest.raises(NotImplementedError, match="output_attentions"):
        tower(torch.randn(1, 3, 32, 32), output_attentions=True)


def test_a_mask_of_the_model_itself_is_not_made_causal():
    """(batch, 1, 1, keys), true where visible, from a model whose module does not say that it is not causal."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    mask = torch.rand(2, 1, 1, 6) > 0.4
    mask[..., 0] = True
    got = mica_transformers.attention(torch.nn.Identity(), q, k, v, mask)[0]
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(got, want.transpose(1, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows, is_causal", [(6, False), (3, False), (3, True)])
def test_without_a_mask_of_any_kind_a_window_says_nothing(rows, is_causal):
    """DiffusionGemma's canvas sees all of itself and of the cache, although its layers have a window."""
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, rows, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    got = mica_transformers.attention(Module(), q, k, v, None, sliding_window=2, is_causal=is_causal)[0]
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(got, want.transpose(1, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("source, is_left_out", [("", False), ("is_causal=config.is_decoder", True)])
def test_umt5s_causal_mask_is_left_out_only_where_its_modules_are_causal(monkeypatch, source, is_left_out):
    config = transformers.UMT5Config(**T5)
    monkeypatch.setitem(mica_transformers._sources, type(config).__module__, source)
    made = mica_transformers.mask(2, kv_length=6, q_length=6, attention_mask=None, config=config)
    assert (made is None) == is_left_out


def test_a_padding_mask_longer_than_the_keys_is_read_from_their_begin():
    """As Transformers reads it: a model of 8 codebooks (Moshi's) may be called with the mask of a longer text."""
    given = torch.ones(2, 9, dtype=torch.int64)
    given[0, :2] = given[1, 7:] = 0
    made = mica_transformers.mask(2, kv_length=6, q_length=6, attention_mask=given, config=None)
    assert torch.equal(made[:, 0, 0].bool(), given[:, :6].bool())


def test_rows_at_the_end_of_a_cache_are_causal():
    """Several new rows after a cache that is in use: the last row sees every key."""
    ids, _ = batch_with_padding("none")
    outputs = []
    for impl in ("eager", "mica"):
        model = build(CAUSAL["gemma2: softcap, windows"], impl)
        with torch.no_grad():
            cache = model(ids[:, :9], use_cache=True).past_key_values
            outputs.append(model(ids[:, 9:], past_key_values=cache).logits)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)


def test_a_causal_mask_of_modules_that_call_themselves_bidirectional():
    """PaliGemma and AIMv2's text model: with nothing padded their mask could be left out, and would be lost."""
    config = transformers.Aimv2TextConfig(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
                                          num_attention_heads=4, max_position_embeddings=32)
    ids, _ = batch_with_padding("none")
    torch.manual_seed(2)
    with torch.no_grad():
        want, got = (build(config, impl, kind=transformers.Aimv2TextModel)(
            ids, attention_mask=torch.ones_like(ids)).last_hidden_state for impl in ("eager", "mica"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(OLD_MASKS, reason="Transformers' Doge needs the flex attention of a later PyTorch, with eager too")
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_model_that_joins_the_mask_with_its_own_gets_all_of_it(side):
    """Doge takes what is not 0 in a mask for hidden, unless it is one of booleans: the short form would be turned over."""
    config = transformers.DogeConfig(num_hidden_layers=2, keep_window_size=4, **SMALL)
    ids, mask = batch_with_padding(side)
    logits = []
    for impl in ("eager", "mica"):
        torch.manual_seed(0)
        model = build(config, impl)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        logits.append(model(input_ids=ids, attention_mask=mask).logits.detach()[mask.bool()])
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_hidden_by_the_least_number_is_the_mean_as_in_eager(dtype):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 8, dtype=dtype) for _ in range(3))
    mask = torch.zeros(2, 1, 6, 6, dtype=dtype)
    mask[0, :, 0] = mask[1, :, 2:4, :3] = torch.finfo(dtype).min
    mask[0, :, 0, 4:] = -float("inf")  # what the sum of two such masks is
    got = mica_transformers.attention(Module(), q, k, v, mask)[0]
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask.double())
    want[0, :, 0] = v.double()[0, :, :4].mean(1)
    torch.testing.assert_close(got.double(), want.transpose(1, 2), rtol=2e-2, atol=1e-5 if dtype == torch.float32 else 2e-2)
