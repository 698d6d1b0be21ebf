# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="flash_attention_2" and "flash_attention_3" over the drop-ins.

Transformers offers those names only where it sees a GPU; on the CPU the check alone is bypassed, and the rest of the
path (mask, unpadding, packing, keyword arguments found by signature) is Transformers' own."""

import importlib.metadata
import logging
import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", minversion="4.57", reason="no transformers 4.57 or later here")
flash_attn = pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")
if "mica" not in flash_attn.__version__:
    pytest.skip(f"flash_attn is upstream's {flash_attn.__version__}", allow_module_level=True)

import flash_attn_interface  # noqa: E402
from transformers import modeling_flash_attention_utils as flash_utils  # noqa: E402
from transformers_test import CAUSAL, batch_with_padding, build, qwen3_06b  # noqa: E402

NAMES = ("qwen3", "gemma2: softcap, windows")
DROPINS = {"flash_attention_2": flash_attn, "flash_attention_3": flash_attn_interface}
of_both = pytest.mark.parametrize("flash", DROPINS, indirect=True)


@pytest.fixture
def flash(request, monkeypatch):
    """The name of a drop-in, FlashAttention-2's where a test does not say; Transformers believes that there is a GPU."""
    chosen = getattr(request, "param", "flash_attention_2")
    monkeypatch.setattr(flash_utils, "is_flash_attn_2_available", lambda *_, **__: True)
    # 4.57, which is not told the name here, takes FlashAttention-3's functions where they are installed too.
    monkeypatch.setattr(flash_utils, "is_flash_attn_3_available", lambda *_, **__: chosen == "flash_attention_3", raising=False)
    for name in ("_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn", "_pad_fn", "_unpad_fn",
                 "_process_flash_kwargs_fn", "_loaded_implementation"):
        if hasattr(flash_utils, name):
            monkeypatch.setattr(flash_utils, name, None)
    return chosen


def build_flash(config, flash, dtype=torch.float32):
    model = build(config, "eager", dtype)
    model.config._attn_implementation = flash
    return model


@of_both
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_equal_eager(flash, name, side):
    ids, mask = batch_with_padding(side)
    used = mask.bool()
    with torch.no_grad():
        want = build(CAUSAL[name], "eager")(ids, attention_mask=mask).logits[used]
        got = build_flash(CAUSAL[name], flash)(ids, attention_mask=mask).logits[used]
    assert flash_utils._flash_fn is DROPINS[flash].flash_attn_func
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@of_both
@pytest.mark.parametrize("name", NAMES)
def test_greedy_generation_equals_eager(flash, name):
    ids, mask = batch_with_padding("left")
    options = dict(max_new_tokens=8, do_sample=False, attention_mask=mask, pad_token_id=0, eos_token_id=None)
    want = build(CAUSAL[name], "eager").generate(ids, **options)
    got = build_flash(CAUSAL[name], flash).generate(ids, **options)
    assert torch.equal(got, want)


@of_both
def test_packed_rows_and_their_gradient(flash):
    lengths = (5, 9, 3)
    torch.manual_seed(1)
    ids = torch.randint(3, 97, (1, sum(lengths)))
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    eager, model = build(CAUSAL["qwen3"], "eager"), build_flash(CAUSAL["qwen3"], flash)
    want = torch.cat([eager(part).logits for part in ids.split(lengths, 1)], 1)
    got = model(ids, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    want.square().sum().backward()
    got.square().sum().backward()
    grads = {name: parameter.grad for name, parameter in eager.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, grads[name], rtol=1e-3, atol=1e-4)


def test_the_installed_distribution_is_the_one_transformers_looks_for():
    try:
        version = importlib.metadata.version("flash-attn")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the drop-in runs from the source tree")
    assert version == flash_attn.__version__
    owners = importlib.metadata.packages_distributions()["flash_attn"]
    assert "flash-attn" in [name.replace("_", "-") for name in owners]


def exact_logits(model, ids, mask):
    """Of the used tokens: the same weights in fp32.

    Not in double: eager takes its softmax in fp32, where the mask's smallest double becomes -inf. Padding on the left,
    whose rows see no key, is then nan, and by the next layer's values (0 * nan) the whole sequence is."""
    return model.float()(ids, attention_mask=mask).logits[mask.bool()]


def expect_within_twice_eager(models, ids, mask):
    """Logits of bf16 models of the same weights, by implementation ("eager" among them): finite, and right."""
    with torch.no_grad():
        logits = {impl: model(ids, attention_mask=mask).logits[mask.bool()].float() for impl, model in models.items()}
        exact = exact_logits(models["eager"], ids, mask)
    for impl, value in (*logits.items(), ("exact", exact)):
        assert value.isfinite().all(), f"{impl}: {(~value.isfinite()).sum()} of {value.numel()} logits are not finite"
    errors = {impl: (value - exact).abs().max().item() for impl, value in logits.items()}
    assert 0 < errors["eager"] < 0.1 * exact.abs().max().item(), f"eager's error says nothing: {errors}"
    for impl, error in errors.items():
        assert error <= 2 * errors["eager"], f"{impl}: {errors}"


def long_batch_with_padding(device):
    torch.manual_seed(1)
    ids = torch.randint(0, 97, (2, 300), device=device)
    mask = torch.ones_like(ids)
    mask[0, :77] = 0
    return ids, mask


@of_both
@pytest.mark.parametrize("name", NAMES)
def test_bf16_logits_within_twice_the_error_of_eager(flash, name):
    models = {impl: build(CAUSAL[name], impl, torch.bfloat16) for impl in ("mica", "eager")}
    models[flash] = build_flash(CAUSAL[name], flash, torch.bfloat16)
    expect_within_twice_eager(models, *long_batch_with_padding("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
def test_on_a_gpu_it_loads_without_a_warning_and_stays_within_twice_eager(caplog):
    try:
        importlib.metadata.version("flash-attn")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the drop-in is not installed, so Transformers does not offer flash_attention_2")
    config = qwen3_06b(4)
    config.dtype = torch.bfloat16
    with caplog.at_level(logging.WARNING, logger="transformers"):
        names = ("flash_attention_2", "mica", "eager")
        models = {impl: build(config, impl, torch.bfloat16).to("cuda") for impl in names}
        expect_within_twice_eager(models, *long_batch_with_padding("cuda"))
    assert not [record for record in caplog.records if "lash" in record.getMessage()]
