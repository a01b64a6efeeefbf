"""Heads of multi-token prediction in the layouts of Transformers (`generate(use_mtp=True)`) and of speculators."""

# pyright: reportAttributeAccessIssue=false
# (a causal model with heads also has the methods of PreTrainedModel)

import copy
import json
import re
from os import PathLike
from typing import Any, cast

import torch
import transformers
from safetensors.torch import save_file
from transformers import PreTrainedModel

from hf_targets.backbones.new_parts import check_no_adapters
from hf_targets.backbones.weight_access import whole_state_dict
from hf_targets.data.atomic_write import written_together
from hf_targets.extras import check_engine
from hf_targets.multitoken.mtp import MtpHeads, layer_and_norm, native_config

CODE = '''"""{base} with {count} layers of multi-token prediction, with which `generate(..., use_mtp=True)` drafts."""

import transformers


class {base}(transformers.{base}):
    # tells Transformers which tensors of the checkpoint belong to those layers
    _keys_to_ignore_on_load_unexpected = [{patterns}]
'''

_NAMES = {
    "mtp_block.": "",
    "enorm.": "token_layernorm.",
    "hnorm.": "hidden_layernorm.",
    "eh_proj.": "input_proj.",
    "post_norm.": "final_layernorm.",
}


def save_native_mtp(model: Any, folder: str | PathLike, **kwargs: Any) -> None:
    """Write the backbone with its heads as further layers, as DeepSeek-V3's checkpoints have them.

    With L layers in the backbone, head n is layer L + n - 1; `num_mtp_layers` tells their number. Transformers asks a
    model's class which tensors belong to such layers. Where it does not say so, `modeling_mtp.py` in the folder does.

    Raises:
        ValueError: If the heads are of another kind, predict differences or have output matrices of their own, a layer
            has an adapter, the backbone is quantised, or Transformers cannot make its layers.
    Source: Transformers' `MtpModel`.
    """
    config, heads, backbone = model.config, cast(MtpHeads, model.heads), cast(PreTrainedModel, model.backbone)
    if (config.head, config.target) != ("mtp", "embedding") or config.separate_output_heads:
        raise ValueError(
            'native_mtp=True saves heads with head="mtp" and target="embedding" that share the output matrix, got '
            f"head={config.head!r}, target={config.target!r} and separate_output_heads={config.separate_output_heads}"
        )
    check_no_adapters(model, "Transformers loads multi-token prediction")
    if hasattr(backbone.config, "quantization_config"):
        raise ValueError("native_mtp=True needs weights that are not quantised; put the heads on the original model")
    own, first = copy.copy(backbone), backbone.config.get_text_config(decoder=True).num_hidden_layers
    own.config = native_config(backbone, len(heads))
    _check_native(own, heads)
    added = {}
    for name, tensor in whole_state_dict(heads.layers).items():
        index, part = name.split(".", 1)
        part = part.removeprefix("mtp_block.")
        part = f"shared_head.norm.{part.removeprefix('post_norm.')}" if part.startswith("post_norm.") else part
        added[f"model.layers.{first + int(index)}.{part}"] = tensor.to(backbone.dtype).contiguous()
    output: Any = backbone.get_output_embeddings()
    if output.bias is not None:  # which Transformers' loader takes for a tensor of the layers
        added["mtp.shared_head.bias"] = output.bias.detach().clone()
    known = list(type(backbone)._keys_to_ignore_on_load_unexpected or [])
    if not all(any(re.search(pattern, name) for pattern in known) for name in added):
        base = type(backbone).__name__
        patterns = [*known, *(rf"model\.layers\.{first + n}\." for n in range(len(heads))), r"^mtp\."]
        code = CODE.format(base=base, count=len(heads), patterns=", ".join(f'r"{pattern}"' for pattern in patterns))
        own.config.auto_map = {"AutoModelForCausalLM": f"modeling_mtp.{base}"}
        with written_together(folder, "modeling_mtp.py") as unfinished:
            (unfinished / "modeling_mtp.py").write_text(code, encoding="utf-8")
    own.save_pretrained(folder, state_dict={**whole_state_dict(backbone), **added}, **kwargs)


def _check_native(backbone: PreTrainedModel, heads: MtpHeads) -> None:
    """Raise an error unless Transformers makes layers with the same tensors of this backbone and its configuration."""
    cause, (layer, norm) = "", layer_and_norm(backbone)
    try:
        from transformers.modeling_layers import MtpLayer

        with torch.device("meta"):
            made = MtpLayer(backbone.config.get_mtp_config(), type(layer), type(norm), 0).state_dict()
        same = [(name, part.shape) for name, part in made.items()]
        same = same == [(name, part.shape) for name, part in heads[0].state_dict().items()]
        is_known = getattr(transformers, type(backbone).__name__, None) is type(backbone)
    except (ImportError, AttributeError, TypeError) as error:
        same = is_known = False
        cause = f": {error}"
    if not (same and is_known and hasattr(backbone, "lm_head")):
        raise ValueError(
            f"native_mtp=True needs a Transformers that can run these heads on {type(backbone).__name__}{cause}; save "
            "the model without it"
        )


def save_for_speculators(
    model: Any, folder: str | PathLike, *, speculative_tokens: int = 1, engine_version: str | None = None
) -> None:
    """Write one head of kind "mtp" as a speculator: the `config.json` and `model.safetensors` that speculators loads.

    Embeddings and output matrix are not in the files: speculators takes them from the base model, by its name. Loaded
    with the classes of speculators 0.9, the head gives the same logits (`recipes/lab/engines/load_speculators.py`); no
    engine was run.

    Args:
        model: A `MultiTokenForCausalLM` with `head="mtp"`, `target="embedding"` and `ngram_size=2`, on a Qwen3 that is
            not trained further.
        speculative_tokens: The tokens that an engine drafts in a row. The head was trained for the first; for more the
            engine lets it read its own output.
        engine_version: The release of speculators that is to load it; None: the installed one, if there is one.
    Raises:
        ValueError: If the head is of another kind, there are several, speculators does not know the backbone, the base
            model has no name or differs from the backbone, a layer has an adapter, `speculative_tokens` is below 1, or
            speculators is older than 0.6, which has no such heads.
    Source: vllm-project/speculators 0.9, speculators/models/mtp, whose configuration and layers are those of 0.6.
    """
    check_engine("speculators", given=engine_version, oldest="0.6")
    config, kind = model.config, model.backbone.config.model_type
    found = config.head, config.target, len(model.heads)
    if found != ("mtp", "embedding", 1) or config.separate_output_heads or config.draft_vocab_size is not None:
        raise ValueError(
            'speculators holds one head with head="mtp", target="embedding", ngram_size=2 and the whole shared output '
            f"matrix, got {found[2]} with head={found[0]!r} and target={found[1]!r}"
        )
    if kind != "qwen3" or speculative_tokens < 1:  # the backbone whose files were loaded with speculators' own classes
        raise ValueError(
            f"speculators knows qwen3, of which it drafts 1 token or more, got {kind} and "
            f"speculative_tokens={speculative_tokens}"
        )
    check_no_adapters(model, "speculators loads a head")
    if not config.base_model_name_or_path:
        raise ValueError("speculators loads the base model by its name; set model.config.base_model_name_or_path")
    model._unchanged_base(config)
    tensors = {}
    for name, tensor in whole_state_dict(model.heads.layers[0]).items():
        old = next(old for old in _NAMES if name.startswith(old))
        tensors[f"mtp_layers.0.{_NAMES[old]}{name.removeprefix(old)}"] = tensor.contiguous()
    method = {"proposal_type": "greedy", "speculative_tokens": speculative_tokens}
    verifier = {"name_or_path": config.base_model_name_or_path, "architectures": [type(model.backbone).__name__]}
    told = {"algorithm": "mtp", "default_proposal_method": "greedy", "proposal_methods": [method], "verifier": verifier}
    values = {"architectures": ["MTPDraftModel"], "speculators_model_type": "mtp", "speculators_config": told}
    values |= {"speculators_version": "0.9.0", "num_nextn_predict_layers": 1, "tie_word_embeddings": False}
    values |= {
        "dtype": str(model.dtype).removeprefix("torch."),
        "transformer_layer_config": model.backbone.config.to_diff_dict(),
    }
    with written_together(folder, "model.safetensors", "config.json") as unfinished:
        save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
        (unfinished / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
