#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="mica" against eager in every model of the installed Transformers that can be made small.

    tools/truth/transformers_truth.py --json out/truth.json --table docs/evidence/transformers-truth.md [model types ...]

Each model type is made from its configuration with small sizes and random weights (no download), in a process of its
own, and run: forward, with an image or a sound among the text, padding on the left and on the right, generation with a
dynamic and a static cache, packed rows, one training step, in fp32; forward in bf16. A type whose class of text alone is not
its whole (bart, whisper) has a second row, "type:class". A case that eager itself cannot run is left out. The JSON file is
read again at the next start, so that a stopped run goes on; --again forgets the given types, --only-table writes the table;
--jobs: how many at a time.
"""

import argparse
import copy
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import traceback

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))  # also where a test loads this file
if not os.environ.get("MICA_TEST_INSTALLED"):
    sys.path.insert(0, str(ROOT / "python"))

from small_models.cases import call, cases, first_line, first_tensor, have_sdpa_leave_empty_rows_zero, judge  # noqa: E402
from small_models.classes import classes_of, whole_of  # noqa: E402
from small_models.inputs import candidates, with_an_image_or_sound  # noqa: E402
from small_models.sizes import small_configs  # noqa: E402

MOST_PARAMETERS = 130_000_000
SECONDS_EACH = 240
SECONDS_TO_BUILD = 30
SECONDS_BETWEEN_NOTES = 5
NOT_RUN = {
    "glm_image_vqmodel": "the class has no forward(), and no attention: glm_image calls its encode()",
    "nougat": "no class takes this configuration: its checkpoints are those of vision-encoder-decoder, which has a row",
    "sam3_video": "it joins sam3 and sam3_tracker_video, which have rows, by thresholds that random scores pass by chance",
}


def fill(model):
    """Weights large enough that attention is far from uniform."""
    import torch
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if not p.is_floating_point() or p.numel() == 0:
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
    """0 where it cannot be made without memory, as Apertus of Transformers 4.57."""
    import torch
    try:
        with torch.device("meta"):
            model = kind._from_config(copy.deepcopy(config), attn_implementation="eager")
    except NotImplementedError:
        return 0
    return sum(p.numel() for p in model.parameters())


def refusal_of(kind, config):
    """What is said when a model is made with Mica's name; None where it is taken. The class alone may say it, where no model can
    be made for want of a package (LayoutLMv2)."""
    import torch
    import mica.integrations.transformers as face
    try:
        face._refuse_model(kind)
        with torch.device("meta"):
            kind._from_config(copy.deepcopy(config), attn_implementation="mica")
    except ValueError as error:
        if "attn_implementation is" in str(error):
            return str(error)
    except Exception:  # noqa: BLE001 - what else is wrong with it shows when it is run
        pass
    return None


def refuses_sdpa(kind, config):
    """Whether Transformers itself refuses sdpa for this class."""
    import torch
    try:
        with torch.device("meta"):
            kind._from_config(copy.deepcopy(config), attn_implementation="sdpa")
    except ValueError as error:
        return "scaled_dot_product_attention" in str(error)
    except Exception:  # noqa: BLE001 - it was not refused for that
        pass
    return False


def class_of(model):
    """The class of "type" or "type:class", or None."""
    model_type, _, name = model.partition(":")
    kinds = classes_of(model_type)
    return next((kind for kind in kinds if not name or kind.__name__ == name), None)


def build(model):
    """(why not, refusal, class, configuration, model, what to call it with): the first of its small forms that eager can run (sdpa,
    of a class that has no eager attention), or what stopped the first; of one that is refused, the refusal."""
    import torch
    from transformers import CONFIG_MAPPING
    kind, model_type = class_of(model), model.partition(":")[0]
    if model_type in NOT_RUN:
        return NOT_RUN[model_type], None, kind, None, None, None
    if kind is None:
        return "Transformers has no model class of this configuration", None, None, None, None, None
    why, refusal, begin = "", None, time.monotonic()
    for make_config in small_configs(CONFIG_MAPPING[model_type], model_type):
        if time.monotonic() - begin > SECONDS_TO_BUILD:
            break
        try:
            config = make_config()
            refusal = refusal_of(kind, config)
            if refusal is not None:
                refusal += " (sdpa is refused too)" if refuses_sdpa(kind, config) else " (sdpa is taken)"
                break
            if "_unimplemented" in kind.forward.__name__:
                why = "the class has no forward(), only methods that call its parts, which have rows"
                break
            parameters = count_parameters(kind, config)
            if parameters > MOST_PARAMETERS:
                raise MemoryError(f"not small: {parameters / 1e6:.0f} million parameters")
            model = make(kind, config, "eager")
        except Exception as error:  # noqa: BLE001
            why = why or first_line(error)
            continue
        for plain in candidates(model, model_type):
            try:
                with torch.no_grad():
                    try:
                        first_tensor(call(model, copy.deepcopy(plain)))
                    except KeyError as error:
                        if "eager" not in str(error):
                            raise
                        model = make(kind, config, "sdpa")
                        first_tensor(call(model, copy.deepcopy(plain)))
                return None, refusal, kind, config, model, plain
            except Exception as error:  # noqa: BLE001
                why = why or first_line(error)
    return why or "no arguments are known for it", refusal, kind, None, None, None


def examine(model_type):
    """What the table says of one model type."""
    import torch
    import transformers
    import mica.integrations.transformers as face
    torch.set_num_threads(1)
    have_sdpa_leave_empty_rows_zero()
    why, refusal, kind, config, model, plain = build(model_type)
    result = {"model": model_type, "class": "" if kind is None else kind.__name__, "cases": {}}
    if refusal is not None:
        return dict(result, refused=refusal)
    if kind is None and whole_of(model_type):
        return dict(result, part=f"no class of its own: it runs within {', '.join(whole_of(model_type))}")
    if why is not None:
        return dict(result, left_out=f"eager, so small: {why}" if "Error: " in why else why)
    calls = [0]

    def spy(*args, **kwargs):
        calls[0] += 1
        return face.attention(*args, **kwargs)

    transformers.AttentionInterface.register("mica", spy)
    reference = model.config._attn_implementation
    kept = {reference: model}

    def make_model(impl):
        if impl not in kept:
            kept[impl] = make(kind, config, impl)
            kept[impl].load_state_dict(kept[reference].state_dict())
        torch.manual_seed(2)  # some models draw at random in evaluation too
        return copy.deepcopy(kept[impl])  # some keep what they saw

    try:
        make_model("mica")
    except Exception as error:  # noqa: BLE001
        return dict(result, wrong=first_line(error))
    runs = cases(kind, plain, with_an_image_or_sound(model) if "input_ids" in plain else {}, make_model)
    for case, run in runs.items():
        tolerance = 0.03 if case == "bf16" else 5e-3 if case == "training" else 1e-3
        result["cases"][case] = judge(run, tolerance, runs["forward"] if case == "bf16" else None, reference)
    result["calls"] = calls[0]
    return result


def start(model_type):
    """examine() where a crash, a hang or much memory harms nobody: (process, where its result comes from, when it is late)."""
    ours, theirs = multiprocessing.Pipe(False)

    def work():
        import logging
        import warnings
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        begin = time.monotonic()
        try:
            theirs.send(dict(examine(model_type), seconds=round(time.monotonic() - begin, 1)))
        except ImportError as error:
            theirs.send(dict(model=model_type, left_out=first_line(error), cases={}))
        except BaseException as error:  # noqa: BLE001
            theirs.send(dict(model=model_type, wrong="".join(traceback.format_exception_only(error))[-300:], cases={}))
        theirs.close()
        os._exit(0)  # the end of an interpreter with torch takes longer than most models, and is waited for

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    theirs.close()
    return process, ours, time.monotonic() + SECONDS_EACH


def finish(model_type, process, ours, late):
    """What came of start(), waited for until it is late."""
    result = dict(model=model_type, cases={}, left_out=f"took more than {SECONDS_EACH} seconds")
    if ours.poll(max(0.0, late - time.monotonic())):
        try:
            result = ours.recv()
        except EOFError:
            process.join(10)
            result = dict(model=model_type, cases={}, wrong=f"ended by signal {-(process.exitcode or 0)}")
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return result


def in_a_process(model_type):
    return finish(model_type, *start(model_type))


def in_processes(models, jobs):
    """(model, its result), as they end."""
    waiting, running = list(models), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            running[waiting[0]] = start(waiting[0])
            waiting.pop(0)
        soonest = max(0.0, min(late for _, _, late in running.values()) - time.monotonic())
        ready = multiprocessing.connection.wait([ours for _, ours, _ in running.values()], soonest)
        for model, (process, ours, late) in list(running.items()):
            if ours in ready or time.monotonic() > late:
                yield model, finish(model, process, ours, late)
                del running[model]


def verdict_of(result):
    """(word, why) of a row."""
    for word in ("wrong", "refused", "part", "left_out"):
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
    unrun = [case for case, (verdict, _) in verdicts.items() if verdict == "left out"]
    note = "; ".join(([] if result.get("calls") else ["never calls Mica"]) + unlike +
                     ([f"eager itself fails: {', '.join(unrun)}"] if unrun else []))
    return "works", ", ".join(right) + (f" ({note})" if note else "")


def every_model():
    """Every type of the installed Transformers, and "type:class" of the second classes."""
    from transformers import CONFIG_MAPPING
    named = []
    for model_type in sorted(CONFIG_MAPPING):
        try:
            further = [f"{model_type}:{kind.__name__}" for kind in classes_of(model_type)[1:]]
        except ImportError:  # of its optional packages; its row says which
            further = []
        named += [model_type, *further]
    return named


def commit_here():
    """The tree's commit, with "+" where tracked files differ from it; "" outside of a repository."""
    found = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--exclude=*", "--abbrev=7", "--dirty=+"],
                           capture_output=True, text=True)
    return found.stdout.strip()


def count_by(results, field):
    """[(value, how many results have it)], the most frequent first."""
    values = [r.get(field) or "unknown" for r in results]
    return sorted(((value, values.count(value)) for value in set(values)), key=lambda pair: (-pair[1], pair[0]))


def write_table(results_by_version, path):
    """One table per Transformers version."""
    lines = ["# Transformers with attn_implementation=\"mica\": what was run", "",
             "Written by `make transformers-truth` (`transformers_truth.py` among the tools): every model type that can",
             "be made small from its configuration, with random weights, on a CPU, against eager attention (or sdpa,",
             "where eager differs from it and Mica does not). What is refused says so in one sentence when the model",
             "is made or run. Part: a configuration without a class of its own, which runs within another row's model.",
             "Left out: what eager itself cannot run so small, and why. A commit in brackets is a row's own, where most rows are of",
             "another one; with +, the tree differed from it.",
             ""]
    for version, results in sorted(results_by_version.items(), reverse=True):
        ordered = sorted(results.values(), key=lambda r: r["model"])
        commits = count_by(ordered, "commit")
        rows = [(r["model"].partition(":")[0], r.get("class", ""), *verdict_of(r), r.get("commit")) for r in ordered]
        counts = {word: sum(row[2] == word for row in rows) for word in ("works", "refused", "part", "left out", "wrong")}
        lines += [f"## Transformers {version}", "",
                  ", ".join(f"{count} {word}" for word, count in counts.items()) + ".", "",
                  "Rows by commit: " + ", ".join(f"{commit} {count}" for commit, count in commits) + "; by PyTorch: " +
                  ", ".join(f"{torch} {count}" for torch, count in count_by(ordered, "torch")) + ".", "",
                  "| model type | class | | what, or why |", "|---|---|---|---|"]
        for model, kind, word, why, commit in rows:
            why = re.sub(r"\s+", " ", why).replace("|", "\\|")[:240]
            of = f" ({commit})" if commit and commit != commits[0][0] else ""
            lines.append(f"| {model} | {kind} | {word} | {why}{of} |")
        lines.append("")
    path.write_text("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "out" / "transformers-truth.json")
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only-table", action="store_true")
    options = parser.parse_args()
    kept = json.loads(options.json.read_text()) if options.json.exists() else {}
    if not options.only_table:
        import torch
        import transformers
        import mica._torch_face  # noqa: F401 - before the fork, as all that every model needs
        import mica.integrations.transformers  # noqa: F401
        from transformers import GenerationMixin  # noqa: F401
        results = kept.setdefault(transformers.__version__, {})
        wanted = [model for model in options.models or every_model() if options.again or model not in results]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        written, commit = 0.0, commit_here()
        for number, (model, result) in enumerate(in_processes(wanted, options.jobs), 1):
            results[model] = dict(result, torch=torch.__version__, commit=commit)
            word, why = verdict_of(result)
            print(f"{model}: {word}: {why[:150]}", flush=True)
            if number == len(wanted) or time.monotonic() > written + SECONDS_BETWEEN_NOTES:
                options.json.write_text(json.dumps(kept, indent=1))
                written = time.monotonic()
    if options.table:
        write_table(kept, options.table)
    return 1 if any(verdict_of(r)[0] == "wrong" for results in kept.values() for r in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
