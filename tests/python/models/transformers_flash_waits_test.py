# SPDX-License-Identifier: Apache-2.0
"""What the drop-ins register for attn_implementation="flash_attention_2" and "flash_attention_3": how often they wait for the
device, and that what they remember is never old."""

import os
import subprocess
import sys
import threading
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", minversion="4.57", reason="no transformers 4.57 or later here")
flash_attn = pytest.importorskip("flash_attn", reason="the drop-in flash_attn is not installed")
if "mica" not in flash_attn.__version__:
    pytest.skip(f"flash_attn is upstream's {flash_attn.__version__}", allow_module_level=True)

import flash_attn_interface  # noqa: E402
from flash_attn import _transformers  # noqa: E402
from transformers import modeling_flash_attention_utils as flash_utils  # noqa: E402
from transformers.integrations import flash_attention as theirs  # noqa: E402
from transformers_flash_test import DROPINS, flash, of_both  # noqa: E402, F401
from transformers_test import SMALL, build  # noqa: E402

AttentionInterface = transformers.modeling_utils.AttentionInterface
LAYERS = 5
PACKED = torch.cat([torch.arange(n) for n in (5, 9, 6)])[None]
ONE = torch.arange(20)[None]
TOLERANCE = dict(rtol=0.05, atol=0.05)
in_full = pytest.mark.skipif(not os.environ.get("MICA_TEST_ALL"), reason="make test-all runs it")


class Dropin:
    def __init__(self, name, registration):
        self.name, self.functions, self.registration = name, DROPINS[name], registration

    def register_theirs(self):
        AttentionInterface.register(self.name, theirs.flash_attention_forward)


REGISTRATIONS = {"flash_attention_2": _transformers.registration, "flash_attention_3": flash_attn_interface._registration}


@pytest.fixture
def dropin(flash):  # noqa: F811
    """Attached."""
    one = Dropin(flash, REGISTRATIONS[flash])
    one.register_theirs()
    assert one.registration.attach()
    yield one
    one.register_theirs()


@pytest.fixture
def model(dropin):
    """bf16, as a first call leaves it."""
    made = build(transformers.Qwen3Config(num_hidden_layers=LAYERS, **SMALL), "eager", torch.bfloat16)
    made.config._attn_implementation = dropin.name
    with torch.no_grad():
        made(ids_of(2), use_cache=False)
    assert flash_utils._flash_fn is dropin.functions.flash_attn_func
    _transformers._memory.positions.clear()
    _transformers._memory.masks.clear()
    return made


@pytest.fixture
def asked(monkeypatch, dropin):
    """The shapes of the positions that were looked at, and of the calls of both flash functions."""
    seen = {"positions": 0, "dense": 0, "packed": 0}

    def counting(name, function):
        def counted(*args, **kwargs):
            seen[name] += 1
            return function(*args, **kwargs)
        return counted

    monkeypatch.setattr(flash_utils, "_is_packed_sequence", counting("positions", flash_utils._is_packed_sequence))
    dense = counting("dense", dropin.functions.flash_attn_func)
    monkeypatch.setattr(dropin.registration, "_flash_function", dense)
    monkeypatch.setattr(flash_utils, "_flash_fn", dense)
    monkeypatch.setattr(flash_utils, "_flash_varlen_fn", counting("packed", dropin.functions.flash_attn_varlen_func))
    return seen


def ids_of(length, batch=1):
    return torch.randint(3, 97, (batch, length), generator=torch.Generator().manual_seed(1))


def eager_of(model, positions, lengths=None):
    """Logits in eager; of packed sequences, one by one."""
    chosen = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    ids = ids_of(positions.shape[1])
    with torch.no_grad():
        parts = ids.split(lengths, 1) if lengths else [ids]
        made = torch.cat([model(part, use_cache=False).logits for part in parts], 1)
    model.config._attn_implementation = chosen
    return made


def flash_of(model, positions):
    with torch.no_grad():
        return model(ids_of(positions.shape[1]), position_ids=positions, use_cache=False).logits


@of_both
@pytest.mark.parametrize("rows", [1, 20])
def test_the_positions_of_a_prompt_are_looked_at_once(model, asked, rows):
    got = flash_of(model, ONE[:, :rows])
    assert asked == dict(positions=int(rows > 1), dense=LAYERS, packed=0)
    torch.testing.assert_close(got, eager_of(model, ONE[:, :rows]), **TOLERANCE)
    flash_of(model, ONE[:, :rows])
    assert asked["positions"] == 2 * int(rows > 1)  # a pass of its own, whose positions may have changed unseen


@of_both
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
def test_how_often_a_prefill_waits_for_the_gpu(model, dropin):
    def waits():
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model(ids, use_cache=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(one.message) for one in said)

    model.cuda()
    ids = ids_of(20).cuda()
    with torch.no_grad():
        model(ids, use_cache=False)
        here = waits()
        dropin.register_theirs()
        assert here <= waits() - (LAYERS - 1)


@of_both
def test_packed_positions_are_packed_in_every_layer(model, asked):
    got = flash_of(model, PACKED.clone())
    assert asked["packed"] == LAYERS and asked["dense"] == 0
    torch.testing.assert_close(got, eager_of(model, PACKED, (5, 9, 6)), **TOLERANCE)


@pytest.mark.parametrize("unseen", [False, True])
def test_positions_that_change_in_place(model, asked, unseen):
    one, packed = eager_of(model, ONE), eager_of(model, PACKED, (5, 9, 6))
    assert (one - packed).abs().max() > 0.2
    positions = ONE.clone()
    for values, want in ((ONE, one), (PACKED, packed), (ONE, one), (PACKED, packed)):
        (positions.data if unseen else positions).copy_(values)
        torch.testing.assert_close(flash_of(model, positions), want, **TOLERANCE)
    # No is remembered for longer than a pass: such calls go Transformers' own way, which looks itself.


def test_positions_that_change_between_two_layers(model, dropin):
    def pack(module, args, kwargs):
        kwargs["position_ids"].copy_(PACKED)

    last = model.model.layers[-1].self_attn.register_forward_pre_hook(pack, with_kwargs=True)
    got = flash_of(model, ONE.clone())
    dropin.register_theirs()
    want = flash_of(model, ONE.clone())
    last.remove()
    assert torch.equal(got, want)
    assert not torch.equal(got, flash_of(model, ONE))


def test_a_new_tensor_in_an_old_ones_place(model, asked):
    packed = eager_of(model, PACKED, (5, 9, 6))
    places = set()
    for _ in range(20):
        positions = ONE.clone()
        places.add(id(positions))
        flash_of(model, positions)
        del positions
        positions = PACKED.clone()
        torch.testing.assert_close(flash_of(model, positions), packed, **TOLERANCE)
        places.add(id(positions))
        del positions
    assert len(_transformers._memory.positions) <= 8


def test_inference_tensors_are_remembered_for_a_pass(model, asked):
    with torch.inference_mode():
        positions = ONE.clone()
        flash_of(model, positions)
        assert asked == dict(positions=1, dense=LAYERS, packed=0)
        positions.copy_(PACKED)
        got = flash_of(model, positions)
    assert asked["packed"] == LAYERS
    torch.testing.assert_close(got, eager_of(model, PACKED, (5, 9, 6)), **TOLERANCE)


@pytest.mark.parametrize("index", ["none", "missing"])
def test_layers_without_a_number_ask_each_time(model, asked, index):
    for layer in model.model.layers[1:]:
        layer.self_attn.layer_idx = None
        if index == "missing":
            del layer.self_attn.layer_idx
    got = flash_of(model, ONE)
    assert asked == dict(positions=LAYERS, dense=LAYERS, packed=0)
    flash_of(model, PACKED)
    assert asked["packed"] == LAYERS
    for number, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = number
    torch.testing.assert_close(got, eager_of(model, ONE), **TOLERANCE)


def test_threads_remember_for_themselves(model):
    want = {"one": eager_of(model, ONE), "packed": eager_of(model, PACKED, (5, 9, 6))}
    wrong = []

    def run(name, positions):
        for _ in range(5):
            if not torch.allclose(flash_of(model, positions), want[name], **TOLERANCE):
                wrong.append(name)

    threads = [threading.Thread(target=run, args=(name, positions.clone()))
               for name, positions in (("one", ONE), ("packed", PACKED))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@of_both
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_gives_the_tokens_of_transformers_own(model, dropin, asked, cache, batch):
    ids = ids_of(12, batch)
    options = dict(max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None, attention_mask=torch.ones_like(ids))
    options.update(dict(cache_implementation="static", disable_compile=True) if cache == "static" else {})
    dropin.register_theirs()
    want = model.generate(ids, **options)
    has_mask = asked["packed"] > 0  # a static cache's, in later versions, says how much of it there is
    assert not has_mask or cache == "static"
    AttentionInterface.register(dropin.name, dropin.registration.function)
    asked.update(positions=0, dense=0, packed=0)
    got = model.generate(ids, **options)
    assert asked == dict(positions=int(batch == 1 and not has_mask), dense=6 * LAYERS, packed=0)
    assert torch.equal(got, want)


@of_both
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_padding_goes_transformers_own_way(model, asked, cache):
    ids = ids_of(12, 2)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    options = dict(max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None, attention_mask=mask)
    options.update(dict(cache_implementation="static", disable_compile=True) if cache == "static" else {})
    got = model.generate(ids, **options)
    assert asked["packed"] == 4 * LAYERS and asked["dense"] == 0
    model.config._attn_implementation = "eager"
    assert torch.equal(got, model.generate(ids, **options))


@of_both
def test_windows_and_softcap_in_a_static_cache(dropin):
    config = transformers.Gemma2Config(num_hidden_layers=4, sliding_window=6, attn_logit_softcapping=3.0,
                                       query_pre_attn_scalar=16, **SMALL)
    made = build(config, "eager", torch.bfloat16)
    options = dict(max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None, cache_implementation="static",
                   disable_compile=True, output_logits=True, return_dict_in_generate=True)
    for length in (3, 11):
        made.config._attn_implementation = dropin.name
        made(ids_of(2), use_cache=False)
        dropin.register_theirs()
        want = made.generate(ids_of(length), **options)
        assert dropin.registration.attach()
        got = made.generate(ids_of(length), **options)
        assert torch.equal(got.sequences, want.sequences)
        torch.testing.assert_close(torch.stack(got.logits), torch.stack(want.logits), **TOLERANCE)


@of_both
def test_the_gradient_of_a_prompt(model, dropin):
    grads = []
    for implementation in (dropin.name, "eager"):
        model.config._attn_implementation = implementation
        model.zero_grad()
        model(ids_of(20), use_cache=False).logits.float().square().mean().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for got, want in zip(*grads):
        assert (got - want).abs().max() <= 0.05 * want.abs().max() + 1e-3


@of_both
def test_what_is_not_known_goes_transformers_own_way(model, dropin, monkeypatch):
    calls = []
    own = dropin.registration._theirs
    monkeypatch.setattr(dropin.registration, "_theirs", lambda *args, **kwargs: calls.append(kwargs) or own(*args, **kwargs))
    call = dropin.registration.function
    module = model.model.layers[0].self_attn
    q = torch.randn(1, 4, 8, 16, dtype=torch.bfloat16)
    want, _ = call(module, q, q, q, None)
    assert not calls
    for given in (dict(a_new_thing=1), dict(deterministic=True), dict(s_aux=torch.zeros(4)), dict(output_attentions=True),
                  dict(cu_seq_lens_q=torch.tensor([0, 8], dtype=torch.int32), cu_seq_lens_k=torch.tensor([0, 8], dtype=torch.int32),
                       max_length_q=8, max_length_k=8)):
        got, _ = call(module, q, q, q, None, is_causal=True, **given)
        assert calls.pop()["is_causal"] is True
        torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)
    call(module, q.float(), q.float(), q.float(), None)
    assert calls.pop()
    call(module, q, q, q, torch.ones(1, 8, dtype=torch.int64))
    assert calls.pop()
    call(module, q, q, q, None, dropout=0.5)
    assert bool(calls) == (dropin.name == "flash_attention_3")  # which has none: Transformers says what becomes of it
    calls.clear()
    for empty in (q[:0], q[:, :0], q[:, :, :0], q[..., :0]):
        with pytest.raises(ValueError, match="zero dimension"):
            call(module, empty, q[..., :empty.shape[-1]], q[..., :empty.shape[-1]], None)


@of_both
def test_splits_are_chosen_by_shape(model, dropin, monkeypatch):
    given = []
    flash_function = dropin.functions.flash_attn_func
    counted = lambda *args, **kwargs: given.append(kwargs) or flash_function(*args, **kwargs)  # noqa: E731
    monkeypatch.setattr(dropin.registration, "_flash_function", counted)
    monkeypatch.setattr(flash_utils, "_flash_fn", counted)
    flash_of(model, ONE)
    assert [call.get("num_splits", 0) for call in given] == [0] * LAYERS


@pytest.mark.parametrize("module, name", [(theirs, "_flash_attention_forward"), (flash_utils, "_flash_attention_forward"),
                                          (flash_utils, "_get_unpad_data"), (flash_utils, "_upad_input")])
def test_what_others_put_in_its_place_is_called(model, dropin, monkeypatch, module, name):
    calls = []
    own = getattr(module, name)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, lambda *args, **kwargs: calls.append(1) or own(*args, **kwargs))
        flash_of(model, ONE)
        model.generate(ids_of(8), max_new_tokens=2, do_sample=False, pad_token_id=0, eos_token_id=None,
                       cache_implementation="static", disable_compile=True)
        if module is theirs:
            assert len(calls) == 3 * LAYERS
        dropin.register_theirs()
        assert not dropin.registration.attach()
    assert dropin.registration.attach()


@pytest.mark.parametrize("flash", [pytest.param("flash_attention_2", marks=in_full), "flash_attention_3"], indirect=True)
def test_a_tracer_sees_transformers_own(model):
    own = model(ids_of(20), use_cache=False).logits
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    for positions in (ONE, PACKED):
        with torch.no_grad():
            got = compiled(ids_of(20), position_ids=positions, use_cache=False).logits
        torch.testing.assert_close(got, flash_of(model, positions), **TOLERANCE)
    assert seen and own.shape == got.shape
    torch._dynamo.reset()


@of_both
def test_another_version_or_registration_is_left_alone(dropin, monkeypatch):
    dropin.register_theirs()
    assert dropin.registration.transformers_function() is None
    with monkeypatch.context() as patch:
        patch.setattr(flash_utils, "_is_packed_sequence", lambda position_ids, batch_size, more: False)
        assert not dropin.registration.attach()
    with monkeypatch.context() as patch:
        patch.delattr(flash_utils, "_is_packed_sequence")
        assert not dropin.registration.attach()
    with monkeypatch.context() as patch:
        patch.setenv("MICA_TRANSFORMERS", "off")
        assert not dropin.registration.attach()
    assert AttentionInterface()[dropin.name] is theirs.flash_attention_forward
    mine = lambda *args, **kwargs: None  # noqa: E731
    AttentionInterface.register(dropin.name, mine)
    assert not dropin.registration.attach()
    assert AttentionInterface()[dropin.name] is mine
    dropin.register_theirs()
    assert dropin.registration.attach() and dropin.registration.attach()
    assert dropin.registration.transformers_function() is theirs.flash_attention_forward


BY_FLASH_2 = ("flash_attention_2", "from flash_attn.bert_padding import pad_input")
BY_FLASH_3 = ("flash_attention_3", "from flash_attn_interface import flash_attn_func")


@pytest.mark.parametrize("name, loads, setting", [
    (*BY_FLASH_2, ""), pytest.param(*BY_FLASH_2, "off", marks=in_full), pytest.param(*BY_FLASH_3, "", marks=in_full),
    (*BY_FLASH_3, "off")])
def test_transformers_loading_it_is_what_attaches(name, loads, setting):
    script = ("import flash_attn, sys; assert 'transformers' not in sys.modules\n"
              "import transformers.modeling_utils as m\n"
              f"before = m.AttentionInterface()['{name}']\n"
              f"{loads}\n"
              f"print(m.AttentionInterface()['{name}'] is before, before.__module__)")
    environment = dict(os.environ, MICA_TRANSFORMERS=setting, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    said = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(setting == "off"), "transformers.integrations.flash_attention"]
