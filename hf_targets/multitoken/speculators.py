"""A head of multi-token prediction as the files that the library speculators loads."""

import json
import os
from typing import cast

from safetensors.torch import save_file

from hf_targets.backbones.new_parts import check_no_adapters
from hf_targets.backbones.weight_access import whole_state_dict
from hf_targets.data.atomic_write import written_together
from hf_targets.multitoken.causal import MultiTokenForCausalLM
from hf_targets.multitoken.configuration import MultiTokenConfig

FAMILIES = ("qwen3",)
"""The kinds of backbone whose files were loaded with speculators' own classes."""
_NAMES = {
    "mtp_block.": "",
    "enorm.": "token_layernorm.",
    "hnorm.": "hidden_layernorm.",
    "eh_proj.": "input_proj.",
    "post_norm.": "final_layernorm.",
}


def save_for_speculators(
    model: MultiTokenForCausalLM, folder: str | os.PathLike, *, speculative_tokens: int = 1
) -> None:
    """Write one head of kind "mtp" as a speculator: the `config.json` and `model.safetensors` that speculators loads.

    Embeddings and output matrix are not in the files: speculators takes them from the base model, by its name. Loaded
    with the classes of speculators 0.9, the head gives the same logits (`recipes/lab/engines/load_speculators.py`); no
    engine was run.

    Args:
        model: With `head="mtp"`, `target="embedding"` and `ngram_size=2`, on a Qwen3 that is not trained further.
        speculative_tokens: The tokens that an engine drafts in a row. The head was trained for the first; for more the
            engine lets it read its own output.
    Raises:
        ValueError: If the head is of another kind, there are several, speculators does not know the backbone, the base
            model has no name or differs from the backbone, a layer has an adapter, or `speculative_tokens` is below 1.
    Source: vllm-project/speculators 0.9, speculators/models/mtp.
    """
    config, kind = model.config, model.backbone.config.model_type
    found = config.head, config.target, len(model.heads)
    if found != ("mtp", "embedding", 1) or config.separate_output_heads or config.draft_vocab_size is not None:
        raise ValueError(
            'speculators holds one head with head="mtp", target="embedding", ngram_size=2 and the whole shared output '
            f"matrix, got {found[2]} with head={found[0]!r} and target={found[1]!r}"
        )
    if kind not in FAMILIES or speculative_tokens < 1:
        raise ValueError(
            f"speculators knows {', '.join(FAMILIES)}, of which it drafts 1 token or more, got {kind} and "
            f"speculative_tokens={speculative_tokens}"
        )
    check_no_adapters(model, "speculators loads a head")
    if not config.base_model_name_or_path:
        raise ValueError("speculators loads the base model by its name; set model.config.base_model_name_or_path")
    model._unchanged_base(cast(MultiTokenConfig, config))
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
