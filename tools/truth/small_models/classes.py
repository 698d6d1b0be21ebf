# SPDX-License-Identifier: Apache-2.0
"""Which class is a model type's."""

import importlib
import inspect
import pkgutil
import re

# The tables of the auto classes, the one with the most to run first.
TABLES = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
          "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
          "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
          "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES", "MODEL_MAPPING_NAMES")


# Configurations of checkpoints that are loaded as another type's class.
LOADED_AS = {"layoutxlm": "LayoutLMv2Model"}


def _of_the_auto_classes(model_type, config_class):
    """The classes of the tables, in their order.
    NOTE: some tables name, for a model of text and images, the class of its text alone, with another configuration."""
    import transformers
    from transformers.models.auto import modeling_auto as auto
    found = []
    for table in TABLES:
        name = getattr(auto, table, {}).get(model_type)
        kind = getattr(transformers, name[0] if isinstance(name, (tuple, list)) else name, None) if name else None
        if kind is not None and kind not in found:
            found.append(kind)
    return [kind for kind in found if kind.config_class is config_class] or found[:1]


def _annotated(kind, code):
    """The configuration that a class says it is made with."""
    config = inspect.signature(kind.__init__).parameters.get("config")
    named = None if config is None else config.annotation
    return getattr(code, named, None) if isinstance(named, str) else named


def _of_the_modelling_code(config_class):
    """Parts of larger models (towers, decoders) have a configuration, but no auto class knows them."""
    from transformers import PreTrainedModel
    package = importlib.import_module(config_class.__module__.rsplit(".", 1)[0])
    found = []
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("modeling_") or module.name.startswith(("modeling_flax_", "modeling_tf_")):
            continue
        code = importlib.import_module(f"{package.__name__}.{module.name}")
        for name, kind in vars(code).items():
            if (inspect.isclass(kind) and issubclass(kind, PreTrainedModel) and kind.__module__ == code.__name__ and
                    config_class in (kind.config_class, _annotated(kind, code)) and
                    not name.endswith("PreTrainedModel") and
                    not inspect.isabstract(kind) and kind.forward.__name__ == "forward"):
                found.append(kind)
    found = [kind for kind in found if kind.config_class is config_class] or found
    order = ("ForCausalLM", "ForConditionalGeneration", "Model")
    return min(found, key=lambda kind: next((i for i, end in enumerate(order) if kind.__name__.endswith(end)), 9),
               default=None)


def classes_of(model_type):
    """The model classes of a type: the one with the most to run first, then those that compute more than it does. A decoder
    alone (bart's, whisper's) is less than the model with its encoder; a base model is a part of the first."""
    from transformers import CONFIG_MAPPING
    config_class = CONFIG_MAPPING[model_type]
    known = _of_the_auto_classes(model_type, config_class)
    if not known and model_type in LOADED_AS:
        import transformers
        return [getattr(transformers, LOADED_AS[model_type])]
    if not known:
        kind = _of_the_modelling_code(config_class)
        return [] if kind is None else [kind]
    whole = [kind for kind in known[1:] if kind.__name__.endswith(("ForConditionalGeneration", "MTModel"))]
    return known[:1] + (whole if known[0].__name__.endswith("ForCausalLM") else [])


def whole_of(model_type):
    """The types whose configurations have this one inside, which has no class of its own."""
    from transformers import CONFIG_MAPPING
    config_class = CONFIG_MAPPING[model_type]
    package = config_class.__module__.rsplit(".", 1)[0]
    family = re.match("[a-z0-9]+", model_type.lower()).group()[:3]
    near = [name for name in sorted(CONFIG_MAPPING) if name.startswith(family) and name != model_type]
    return [name for name in near if CONFIG_MAPPING[name].__module__.rsplit(".", 1)[0] == package and
            config_class in _within(CONFIG_MAPPING[name])]


def _within(config_class):
    """The classes of the configurations inside one."""
    known = set(getattr(config_class, "sub_configs", {}).values())
    try:
        return known | {type(value) for value in vars(config_class()).values() if hasattr(value, "to_dict")}
    except Exception:  # noqa: BLE001 - it cannot be made without arguments
        return known
