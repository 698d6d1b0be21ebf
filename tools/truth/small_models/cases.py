# SPDX-License-Identifier: Apache-2.0
"""What a small model is run through, and how an implementation's results are judged."""

import copy
import inspect

from .inputs import ROWS


def first_tensor(output):
    import torch
    for name in ("logits", "last_hidden_state", "logits_per_image", "pooler_output", "encoder_last_hidden_state"):
        value = getattr(output, name, None)
        if torch.is_tensor(value):
            return value
    if torch.is_tensor(output):
        return output
    values = output.values() if hasattr(output, "values") else output if isinstance(output, (tuple, list)) else []
    for value in values:
        value = value[-1] if isinstance(value, (tuple, list)) and value else value  # of all layers or scales
        if torch.is_tensor(value) and value.is_floating_point():
            return value
    raise TypeError(f"no tensor in a {type(output).__name__}")


def _folded(model, protein):
    """Distances and coordinates, without those of the atoms that only fill up."""
    import torch
    made = model.fold(**protein, num_diffusion_samples=1, num_sampling_steps=2)
    coordinates = made.sample_atom_coords[protein["atom_attention_mask"].bool()]
    return torch.cat([made.distogram_logits.flatten(), coordinates.flatten(), made.pae_logits.flatten()])


def call(model, given):
    """The model's result; of a session that holds a video, that of its second frame, which remembers the first; of a
    protein, the structure's."""
    if "protein" in given:
        return _folded(model, given["protein"])
    if "inference_session" not in given:
        return model(**given)
    for frame in range(2):
        output = model(frame_idx=frame, **given)
    return output


def padding(side):
    import torch
    mask = torch.ones(3, ROWS, dtype=torch.int64)
    for row, count in enumerate((0, 4, 9)):
        mask[row, slice(0, count) if side == "left" else slice(ROWS - count, ROWS)] = 0
    return mask


def have_sdpa_leave_empty_rows_zero():
    """Before PyTorch 2.5 sdpa's row that sees nothing is NaN, and Transformers has such a row see every key. Since then it
    is 0, as Mica's is; where models mix those rows with others (BLT), that is to be compared with."""
    import torch
    from transformers import AttentionInterface, masking_utils
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 5):
        return
    plain, plain_mask = ALL_ATTENTION_FUNCTIONS["sdpa"], masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]

    def attention(module, query, key, value, attention_mask, **options):
        o, weights = plain(module, query, key, value, attention_mask, **options)
        if attention_mask is not None:
            seen = attention_mask if attention_mask.dtype == torch.bool else attention_mask > -float("inf")
            is_empty = ~seen[..., :key.shape[2]].any(-1)  # (batch, 1 or heads, rows)
            o = o.masked_fill(is_empty.transpose(1, 2)[..., None], 0.0)
        return o, weights

    AttentionInterface.register("sdpa", attention)
    masking_utils.AttentionMaskInterface.register("sdpa", lambda *given, **named: plain_mask(
        *given, **{"allow_torch_fix": False, **named}))


def cases(kind, plain, senses, make_model):
    """Name -> function of an implementation that gives a list of tensors; what does not apply is not there. plain, senses:
    what to call the model with, plainly and with an image or a sound; make_model(implementation): one that may be changed."""
    import numpy
    import torch

    def anew(given):
        """Some models write into what they are called with."""
        return copy.deepcopy(given)

    def rounded_down(value):
        """To bf16, in lists and tables too."""
        if torch.is_tensor(value):
            return value.to(torch.bfloat16) if value.is_floating_point() else value
        if isinstance(value, dict):
            return {name: rounded_down(part) for name, part in value.items()}
        if hasattr(value, "processed_frames"):
            value.processed_frames, value.dtype = rounded_down(value.processed_frames), torch.bfloat16
        return type(value)(rounded_down(part) for part in value) if isinstance(value, (list, tuple)) else value

    is_text = "input_ids" in plain
    made = {}

    def forward(impl, **given):
        with torch.no_grad():
            return [first_tensor(call(make_model(impl), dict(anew(plain), **given)))]

    made["forward"] = forward
    for sense, given in senses.items():

        def perceive(impl, given=given):
            with torch.no_grad():
                return [first_tensor(call(make_model(impl), anew(given)))]

        made[sense] = perceive
    sound = next((name for name in ("input_values", "input_features") if name in plain), None)
    if sound and not is_text and "attention_mask" in inspect.signature(kind.forward).parameters:
        axis = -1 if sound == "input_values" else 1

        def cut_short(impl):
            mask = torch.ones(plain[sound].shape[0], plain[sound].shape[axis], dtype=torch.int64)
            mask[-1, mask.shape[1] * 2 // 3:] = 0
            return forward(impl, attention_mask=mask)

        made["padding right"] = cut_short
    if not is_text and "decoder_input_ids" in plain and kind.can_generate():  # speech or an image to text

        def write_down(impl, **options):
            given = {k: v for k, v in anew(plain).items() if k != "decoder_input_ids"}
            with torch.no_grad():
                out = make_model(impl).generate(**given, max_new_tokens=5, min_new_tokens=5, do_sample=False, num_beams=1,
                                                pad_token_id=0, decoder_start_token_id=1, output_scores=True,
                                                return_dict_in_generate=True, disable_compile=True, **options)
            return [torch.stack(out.scores).nan_to_num(posinf=0.0, neginf=0.0)]

        made["generate"] = write_down
        made["generate static"] = lambda impl: write_down(impl, cache_implementation="static")
    if is_text:
        has_decoder = "decoder_input_ids" in plain
        for side in ("left", "right"):
            mask = padding(side)

            def padded(impl, mask=mask):
                out = forward(impl, attention_mask=mask)[0]
                if has_decoder or out.dim() != 3 or out.shape[1] - mask.shape[1] not in (0, 1):
                    return [out]
                kept = torch.nn.functional.pad(mask, (0, out.shape[1] - mask.shape[1]), value=1)  # a token of its own
                return [out[kept.bool()]]

            made[f"padding {side}"] = padded

        def generate(impl, **options):
            model = make_model(impl)
            given = {k: v for k, v in anew(plain).items() if k != "decoder_input_ids"}
            if has_decoder:
                options["decoder_start_token_id"] = 1
            with torch.no_grad():
                out = model.generate(**given, attention_mask=padding("left"), max_new_tokens=5, min_new_tokens=5,
                                     do_sample=False, num_beams=1, pad_token_id=0, output_scores=True,
                                     return_dict_in_generate=True, disable_compile=True, **options)
            return [torch.stack(out.scores).nan_to_num(posinf=0.0, neginf=0.0)]

        if kind.can_generate():
            made["generate"] = generate
            made["generate static"] = lambda impl: generate(impl, cache_implementation="static")
        if not has_decoder and "position_ids" in inspect.signature(kind.forward).parameters:
            lengths = (9, 4, 1)
            positions = torch.cat([torch.arange(n) for n in lengths])[None]
            row = plain["input_ids"][:1]

            def packed(impl, **given):
                with torch.no_grad():
                    model = make_model(impl)
                    return [first_tensor(model(input_ids=row, position_ids=positions, use_cache=False, **given))]

            made["packed"] = packed

    def train(impl):
        model = make_model(impl).train()
        torch.manual_seed(2)
        numpy.random.seed(2)
        mask = padding("right")
        given = dict(anew(plain), attention_mask=mask) if is_text else anew(plain)
        loss = first_tensor(call(model, given)).float()
        if is_text and loss.dim() == 3 and loss.shape[:2] == mask.shape and "decoder_input_ids" not in plain:
            loss = loss[mask.bool()]
        (loss * torch.linspace(-1, 1, loss.numel()).view_as(loss)).sum().backward()
        grads = [p.grad for _, p in sorted(model.named_parameters()) if p.grad is not None]
        return [torch.cat([g.flatten() for g in grads])] if grads else []

    made["training"] = train

    def rounded(impl):
        with torch.no_grad():
            model = make_model(impl).to(torch.bfloat16)
            return [first_tensor(call(model, rounded_down(anew(plain)))).float()]

    made["bf16"] = rounded
    return made


def difference(got, want):
    """Largest, relative to the largest of what is wanted."""
    import torch
    if len(got) != len(want) or any(a.shape != b.shape for a, b in zip(got, want)):
        return float("inf")
    worst = 0.0
    for a, b in zip(got, want):
        a, b = a.double(), b.double()
        if a.numel() == 0:
            continue
        if not torch.equal(a.isfinite(), b.isfinite()):
            return float("inf")
        a, b = a.nan_to_num(0.0, 0.0, 0.0), b.nan_to_num(0.0, 0.0, 0.0)
        worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp_min(1e-3)).item())
    return worst


def first_line(error):
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}"[:200]


def judge(run, tolerance, exact=None, reference="eager"):
    """(verdict, text): "right", "refused", "wrong", or "left out" where the reference cannot run it. exact: what rounded
    results are compared with, where they differ by more than the tolerance."""
    try:
        want = run(reference)
    except Exception as error:  # noqa: BLE001
        return "left out", f"{reference}: {first_line(error)}"
    if any(not t.isfinite().any() for t in want if t.numel()):
        return "left out", "eager gives no finite number"
    try:
        got = run("mica")
    except (NotImplementedError, ValueError) as error:
        if "attn_implementation" in str(error):
            return "refused", str(error)
        return "wrong", first_line(error)
    except Exception as error:  # noqa: BLE001
        return "wrong", first_line(error)
    off = difference(got, want)
    if off <= tolerance:
        return "right", f"{off:.1e}"
    if exact is not None:
        mine, eagers = difference(got, exact(reference)), difference(want, exact(reference))
        if mine <= 2 * eagers:
            return "right", f"{mine:.1e} from fp32, where eager differs by {eagers:.1e}"
    try:
        other = run("sdpa")
    except Exception:  # noqa: BLE001
        return "wrong", f"{off:.1e} from eager"
    from_sdpa, between = difference(got, other), difference(other, want)
    if from_sdpa <= tolerance:
        return "right", f"as sdpa ({from_sdpa:.1e}; eager differs by {between:.1e})"
    if off <= 4 * between and between < 0.05:
        return "right", f"{off:.1e}, where sdpa differs by {between:.1e}"
    return "wrong", f"{off:.1e} from eager, {from_sdpa:.1e} from sdpa"
