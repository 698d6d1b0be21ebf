# SPDX-License-Identifier: Apache-2.0
"""Which class is a model type's."""

import importlib
import inspect
import pkgutil

# The tables of the auto classes, the one with the most to run first.
TABLES = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
          "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
          "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "MODEL_MAPPING_NAMES")


def _of_the_auto_classes(model_type, config_class):
    """NOTE: some tables name, for a model of text and images, the class of its text alone, with another configuration."""
    import transformers
    from transformers.models.auto import modeling_auto as auto
    found = []
    for table in TABLES:
        name = getattr(auto, table, {}).get(model_type)
        kind = getattr(transformers, name[0] if isinstance(name, (tuple, list)) else name, None) if name else None
        if kind is not None:
            found.append(kind)
    return next((kind for kind in found if kind.config_class is config_class), found[0] if found else None)


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
                    kind.config_class is config_class and not name.endswith("PreTrainedModel") and
                    not inspect.isabstract(kind) and kind.forward.__name__ == "forward"):
                found.append(kind)
    order = ("ForCausalLM", "ForConditionalGeneration", "Model")
    return min(found, key=lambda kind: next((i for i, end in enumerate(order) if kind.__name__.endswith(end)), 9),
               default=None)


def class_of(model_type):
    """The model class of a type, or None."""
    from transformers import CONFIG_MAPPING
    return _of_the_auto_classes(model_type, CONFIG_MAPPING[model_type]) or _of_the_modelling_code(CONFIG_MAPPING[model_type])
