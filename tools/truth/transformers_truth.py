#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="mica" against eager in every model of the installed Transformers that can be made small.

    tools/truth/transformers_truth.py --json out/truth.json --table docs/evidence/transformers-truth.md [model types ...]

Each model type is made from its configuration with small sizes and random weights (no download), in a process of its
own, and run: forward, padding on the left and on the right, generation with a dynamic and a static cache, packed rows,
one training step, in fp32; forward in bf16. A case that eager itself cannot run is left out. The JSON file is read
again at the next start, so that a stopped run goes on; --again forgets the given types, --only-table writes the table.
"""

import argparse
import copy
import inspect
import json
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import time
import traceback

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = pathlib.Path(__file__).resolve().parents[2]
if not os.environ.get("MICA_TEST_INSTALLED"):
    sys.path.insert(0, str(ROOT / "python"))

VOCABULARY, ROWS, HIDDEN, HEADS, KEY_HEADS = 128, 14, 64, 4, 2
MOST_PARAMETERS = 30_000_000
SECONDS_EACH = 240

# Names of configurations' numbers, by what they are; the first pattern that fits decides.
SIZES = [
    (r"(^|_)(vocab_size|n_vocab|vocabulary_size)$|^(text|audio|speech|unit|t2u)?_?vocab_size$", VOCABULARY),
    (r"^(num_key_value_heads|num_kv_heads|n_head_kv|multi_query_group_num|swa_num_key_value_heads)$", KEY_HEADS),
    (r"^head_dim$|^attention_head_size$|^d_kv$|^global_head_dim$|^swa_head_dim$", HIDDEN // HEADS),
    (r"heads?$|^n_heads?$|_heads_", HEADS),
    (r"^(kv_lora_rank|q_lora_rank|index_head_dim)$", 32),
    (r"^(qk_nope_head_dim|qk_rope_head_dim|v_head_dim)$", 16),
    (r"(intermediate|ffn|feedforward|mlp)_?(size|dim)(_mlp)?$|^d_ff$|^n_inner$|shared_intermediate", 96),
    (r"^(hidden_size|d_model|n_embd|dim|embed_dim|emb_dim|embedding_size|projection_dim|out_hidden_size|width|"
     r"embed_size|n_state|encoder_hidden_size|cross_hidden_size|qformer_hidden_size|text_embed_dim|decoder_hidden_size|"
     r"hidden_dim|model_dim|encoder_embed_dim|decoder_embed_dim|vision_hidden_size|mm_hidden_size|"
     r"language_dim)$", HIDDEN),
    (r"(^|_)(num_(hidden_)?layers|n_layers?|num_decoder_layers|encoder_layers|decoder_layers|depth|num_blocks|"
     r"num_encoder_layers|t2u_encoder_layers|t2u_decoder_layers)$", 2),
    (r"^(num_local_experts|num_experts|n_routed_experts|moe_num_experts|num_routed_experts)$", 4),
    (r"^(num_experts_per_tok|moe_k|num_experts_per_token|moe_topk)$", 2),
    (r"^(n_group|topk_group|n_shared_experts|num_shared_experts|first_k_dense_replace|num_nextn_predict_layers)$", 1),
    (r"^(max_position_embeddings|n_positions|max_seq_len|seq_length|n_ctx|max_source_positions|"
     r"max_target_positions|max_sequence_length)$", 256),
    (r"^(image_size|img_size|input_size)$", 32),
    (r"^patch_size$", 8),
    (r"^(sliding_window|attention_window|local_attention)$", 6),
    (r"^attention_chunk_size$", 8),
    (r"^(num_queries|num_query_tokens|num_latents|index_topk)$", 8),
    (r"^(pad_token_id|padding_idx)$", 0),
    (r"^(bos_token_id|decoder_start_token_id)$", 1),
    (r"^(image|video|audio|vision|speech)\w*_token_(id|index)$|_token_id$|_token_index$", 5),
]
DROPPED = re.compile(r"(^|_)(dropout|drop_path_rate|drop_rate|dropout_rate|drop_prob|layerdrop|pdrop)(_\w+)?$|"
                     r"_(dropout|pdrop|layerdrop)$")


def shrink_rope(values):
    """Parts of the rotary dimensions, which must add up to half of the head's."""
    for value in values.values():
        if isinstance(value, dict):
            shrink_rope(value)
    if "mrope_section" in values or "rope_type" in values:
        values["mrope_section"] = [2, 3, 3]


def shrink(config, key_heads, depth=0):
    """Sets what can be recognised to small values, in nested configurations too."""
    for name in sorted(vars(config)):
        value = getattr(config, name, None)
        if hasattr(value, "to_dict") and depth < 4:
            shrink(value, key_heads, depth + 1)
        elif name in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            shrink_rope(value)
        elif isinstance(value, bool) or name.startswith("_"):
            continue
        elif DROPPED.search(name) and isinstance(value, float):
            setattr(config, name, 0.0)
        elif isinstance(value, int):
            for pattern, small in SIZES:
                if re.search(pattern, name):
                    small = key_heads if small == KEY_HEADS and "head" in name else small
                    setattr(config, name, min(value, small) if value > 0 else value)
                    break
        elif name in ("layer_types", "mlp_layer_types", "layers_block_type") and isinstance(value, list):
            kinds = sorted(set(value))
            setattr(config, name, (kinds * 2)[:2] if kinds else value)
    for name in ("eos_token_id", "forced_eos_token_id"):
        if getattr(config, name, None) is not None:
            setattr(config, name, None if name != "eos_token_id" else VOCABULARY - 1)
    for name in ("gradient_checkpointing", "apply_spec_augment"):
        if hasattr(config, name):
            setattr(config, name, False)
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(getattr(config, "layer_types", None), list) and isinstance(layers, int):
        kinds = config.layer_types
        config.layer_types = (kinds * layers)[:layers]
    return config


def small_config(kind, key_heads):
    """A configuration made anew from small values where that works (so that what it derives fits), else changed."""
    config = shrink(kind(), key_heads)
    values = {k: v for k, v in config.to_diff_dict().items() if isinstance(v, (int, float, str, bool)) and
              k not in ("model_type", "transformers_version", "architectures")}
    names = set(inspect.signature(kind.__init__).parameters)
    values = {k: v for k, v in values.items() if k in names}
    if not any(hasattr(v, "to_dict") for v in vars(config).values()):
        try:
            config = shrink(kind(**values), key_heads)
        except Exception:  # noqa: BLE001 - what a configuration refuses is tried in the other way
            pass
    return config


def class_of(model_type):
    """The model class of a type: the one with the most to run."""
    from transformers.models.auto import modeling_auto as auto
    for table in ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
                  "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
                  "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
                  "MODEL_MAPPING_NAMES"):
        name = getattr(auto, table, {}).get(model_type)
        if name is not None:
            return name[0] if isinstance(name, (tuple, list)) else name
    return None


def fill(model):
    """Weights large enough that attention is far from uniform."""
    import torch
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if not p.is_floating_point():
                continue
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() >= 2:
                fan_in = max(1, p[0].numel())
                p.copy_(noise * (1.2 * fan_in ** -0.5))
            elif "norm" in name.lower() and name.endswith("weight"):
                p.add_(0.1 * noise)
            else:
                p.copy_(0.2 * noise)
    return model


def make(kind, config, implementation):
    import torch
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    return fill(kind._from_config(config, attn_implementation=implementation).float()).eval()


def count_parameters(kind, config):
    import torch
    with torch.device("meta"):
        model = kind._from_config(copy.deepcopy(config), attn_implementation="eager")
    return sum(p.numel() for p in model.parameters())


def find(config, *names):
    """The first of these numbers in a configuration or those within it."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (int, list, tuple)) and not isinstance(value, bool) and value:
            return value
    for value in vars(config).values():
        if hasattr(value, "to_dict"):
            found = find(value, *names)
            if found:
                return found
    return None


def inputs_of(model, with_pixels):
    """Name -> tensor of a plain call, by the arguments that forward takes."""
    import torch
    torch.manual_seed(1)
    names = inspect.signature(model.forward).parameters
    main, config, made = getattr(model, "main_input_name", "input_ids"), model.config, {}
    pixels = find(config, "image_size", "img_size", "input_size") or 32
    height, width = (pixels[0], pixels[-1]) if isinstance(pixels, (list, tuple)) else (pixels, pixels)
    channels = find(config, "num_channels", "in_channels", "in_chans") or 3
    channels = channels if isinstance(channels, int) else 3
    if "input_ids" in names:
        made["input_ids"] = torch.randint(8, VOCABULARY - 8, (3, ROWS))
    elif main == "pixel_values" and "pixel_values" in names:
        made["pixel_values"] = torch.randn(2, channels, height, width)
    elif "input_values" in names:
        values = torch.randn(2, 4000)
        made["input_values"] = values if "padding_mask" not in names else values[:, None]
        if find(config, "num_mel_bins") and find(config, "max_length"):
            made["input_values"] = torch.randn(2, find(config, "max_length"), find(config, "num_mel_bins"))
    elif "input_features" in names:
        bins = find(config, "num_mel_bins", "feature_size", "input_dim") or 80
        length = 2 * (find(config, "max_source_positions") or 64)
        made["input_features"] = torch.randn(2, bins, length)
    elif "pixel_values" in names:
        made["pixel_values"] = torch.randn(2, channels, height, width)
    if with_pixels and "pixel_values" in names and "pixel_values" not in made:
        made["pixel_values"] = torch.randn(3, channels, height, width)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
        made["decoder_input_ids"] = torch.randint(8, VOCABULARY - 8, (next(iter(made.values())).shape[0], ROWS - 3))
    return made


def first_tensor(output):
    import torch
    for name in ("logits", "last_hidden_state", "logits_per_image", "pooler_output", "encoder_last_hidden_state"):
        value = getattr(output, name, None)
        if torch.is_tensor(value):
            return value
    values = output.values() if hasattr(output, "values") else output if isinstance(output, (tuple, list)) else [output]
    for value in values:
        if torch.is_tensor(value) and value.is_floating_point():
            return value
    raise TypeError(f"no tensor in a {type(output).__name__}")


def padding(side):
    import torch
    mask = torch.ones(3, ROWS, dtype=torch.int64)
    for row, count in enumerate((0, 4, 9)):
        mask[row, slice(0, count) if side == "left" else slice(ROWS - count, ROWS)] = 0
    return mask


def cases(kind, plain, make_model):
    """Name -> function of an implementation that gives a list of tensors; what does not apply is not there."""
    import numpy
    import torch
    is_text = "input_ids" in plain
    made = {}

    def forward(impl, **given):
        with torch.no_grad():
            return [first_tensor(make_model(impl)(**plain, **given))]

    made["forward"] = forward
    if is_text:
        has_decoder = "decoder_input_ids" in plain
        for side in ("left", "right"):
            mask = padding(side)

            def padded(impl, mask=mask):
                out = forward(impl, attention_mask=mask)[0]
                same = out.dim() == 3 and out.shape[:2] == mask.shape and not has_decoder
                return [out[mask.bool()] if same else out]

            made[f"padding {side}"] = padded

        def generate(impl, **options):
            model = make_model(impl)
            given = {k: v for k, v in plain.items() if k != "decoder_input_ids"}
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
        loss = first_tensor(model(**plain, attention_mask=mask) if is_text else model(**plain)).float()
        if is_text and loss.dim() == 3 and loss.shape[:2] == mask.shape and "decoder_input_ids" not in plain:
            loss = loss[mask.bool()]
        (loss * torch.linspace(-1, 1, loss.numel()).view_as(loss)).sum().backward()
        grads = [p.grad for _, p in sorted(model.named_parameters()) if p.grad is not None]
        return [torch.cat([g.flatten() for g in grads])] if grads else []

    made["training"] = train

    def rounded(impl):
        with torch.no_grad():
            model = make_model(impl).to(torch.bfloat16)
            given = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in plain.items()}
            return [first_tensor(model(**given)).float()]

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


def judge(run, tolerance, exact=None):
    """(verdict, text): "right", "refused", "wrong", or "left out" where eager cannot run it. exact: what rounded
    results are compared with, where they differ by more than the tolerance."""
    try:
        want = run("eager")
    except Exception as error:  # noqa: BLE001
        return "left out", f"eager: {first_line(error)}"
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
        mine, eagers = difference(got, exact("eager")), difference(want, exact("eager"))
        text = f"{mine:.1e} from fp32, where eager differs by {eagers:.1e}"
        return ("right" if mine <= 2 * eagers else "wrong"), text
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


def examine(model_type):
    """What the table says of one model type."""
    import torch
    import transformers
    import mica.integrations.transformers as face
    from transformers import CONFIG_MAPPING
    torch.set_num_threads(1)
    result = dict(model=model_type, cases={})
    name = class_of(model_type)
    kind = getattr(transformers, name, None) if name else None
    if kind is None:
        return dict(result, left_out="no model class that the auto classes know")
    result["class"] = name
    why = ""
    for key_heads, with_pixels in ((KEY_HEADS, False), (HEADS, False), (KEY_HEADS, True), (HEADS, True)):
        try:
            config = small_config(CONFIG_MAPPING[model_type], key_heads)
            parameters = count_parameters(kind, config)
            if parameters > MOST_PARAMETERS:
                return dict(result, left_out=f"not small: {parameters / 1e6:.0f} million parameters")
            kept = {"eager": make(kind, config, "eager")}
            plain = inputs_of(kept["eager"], with_pixels)
            with torch.no_grad():
                first_tensor(kept["eager"](**plain))
            break
        except Exception as error:  # noqa: BLE001
            why = why or first_line(error)
    else:
        try:
            make(kind, config, "mica")
        except ValueError as error:
            if "attn_implementation is" in str(error):
                return dict(result, refused=str(error))
        except Exception:  # noqa: BLE001
            pass
        return dict(result, left_out=f"eager, so small: {why}")
    calls = [0]

    def spy(*args, **kwargs):
        calls[0] += 1
        return face.attention(*args, **kwargs)

    transformers.AttentionInterface.register("mica", spy)
    try:
        kept["mica"] = make(kind, config, "mica")
    except ValueError as error:
        return dict(result, refused=str(error)) if "attn_implementation" in str(error) else dict(
            result, wrong=first_line(error))
    except Exception as error:  # noqa: BLE001
        return dict(result, wrong=first_line(error))
    kept["mica"].load_state_dict(kept["eager"].state_dict())

    def make_model(impl):
        if impl not in kept:
            kept[impl] = make(kind, config, impl)
            kept[impl].load_state_dict(kept["eager"].state_dict())
        torch.manual_seed(2)  # some models draw at random in evaluation too
        return copy.deepcopy(kept[impl])

    runs = cases(kind, plain, make_model)
    for case, run in runs.items():
        tolerance = 0.03 if case == "bf16" else 5e-3 if case == "training" else 1e-3
        result["cases"][case] = judge(run, tolerance, runs["forward"] if case == "bf16" else None)
    result["calls"] = calls[0]
    return result


def in_a_process(model_type):
    """examine() where a crash, a hang or much memory harms nobody."""
    ours, theirs = multiprocessing.Pipe(False)

    def work():
        import logging
        import warnings
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            theirs.send(examine(model_type))
        except BaseException as error:  # noqa: BLE001
            theirs.send(dict(model=model_type, wrong="".join(traceback.format_exception_only(error))[-300:], cases={}))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    theirs.close()
    result = dict(model=model_type, cases={}, left_out=f"took more than {SECONDS_EACH} seconds")
    if ours.poll(SECONDS_EACH):
        try:
            result = ours.recv()
        except EOFError:
            process.join(10)
            result = dict(model=model_type, cases={}, wrong=f"ended by signal {-(process.exitcode or 0)}")
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return result


def verdict_of(result):
    """(word, why) of a row."""
    for word in ("wrong", "refused", "left_out"):
        if word in result:
            return word.replace("_", " "), result[word]
    verdicts = {case: tuple(v) for case, v in result["cases"].items()}
    for word in ("wrong", "refused"):
        found = [f"{case}: {text}" for case, (verdict, text) in verdicts.items() if verdict == word]
        if found:
            return word, "; ".join(found)
    right = [case for case, (verdict, _) in verdicts.items() if verdict == "right"]
    if not right:
        return "left out", next((text for _, text in verdicts.values()), "no case applies")
    unlike = [f"{case} {text}" for case, (_, text) in verdicts.items() if "sdpa" in text]
    note = "; ".join(([] if result.get("calls") else ["never calls Mica"]) + unlike)
    return "works", ", ".join(right) + (f" ({note})" if note else "")


def write_table(results_by_version, path):
    """One table per Transformers version."""
    lines = ["# Transformers with attn_implementation=\"mica\": what was run", "",
             "Written by `make transformers-truth` (`transformers_truth.py` among the tools): every model type of the",
             "auto classes that can be made small from its configuration, with random weights, on a CPU, against eager",
             "attention (or sdpa, where eager differs from it and Mica does not). What is refused says so in one",
             "sentence when the model is made or run. Left out: what eager itself cannot run so small, and why.",
             ""]
    for version, results in sorted(results_by_version.items(), reverse=True):
        ordered = sorted(results.values(), key=lambda r: r["model"])
        rows = [(r["model"], r.get("class", ""), *verdict_of(r)) for r in ordered]
        counts = {word: sum(row[2] == word for row in rows) for word in ("works", "refused", "left out", "wrong")}
        lines += [f"## Transformers {version}", "",
                  ", ".join(f"{count} {word}" for word, count in counts.items()) + ".", "",
                  "| model type | class | | what, or why |", "|---|---|---|---|"]
        for model, kind, word, why in rows:
            why = re.sub(r"\s+", " ", why).replace("|", "\\|")
            lines.append(f"| {model} | {kind} | {word} | {why[:240]} |")
        lines.append("")
    path.write_text("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "out" / "transformers-truth.json")
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only-table", action="store_true")
    options = parser.parse_args()
    kept = json.loads(options.json.read_text()) if options.json.exists() else {}
    if not options.only_table:
        import transformers
        import mica.integrations.transformers  # noqa: F401 - before the fork
        results = kept.setdefault(transformers.__version__, {})
        wanted = options.models or sorted(transformers.CONFIG_MAPPING)
        for model_type in wanted:
            if model_type in results and not options.again:
                continue
            begin = time.monotonic()
            results[model_type] = in_a_process(model_type)
            word, why = verdict_of(results[model_type])
            print(f"{model_type}: {word}: {why[:150]} ({time.monotonic() - begin:.0f} s)", flush=True)
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(kept, indent=1))
    if options.table:
        write_table(kept, options.table)
    return 1 if any(verdict_of(r)[0] == "wrong" for results in kept.values() for r in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
