"""Checkpoints of the published programs of Difformer and DINOISER, read strictly, and the vocabularies of fairseq."""

# pyright: reportArgumentType=false
# (a mixin: the model has the methods of PreTrainedModel)

import os
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from hf_targets.backbones.published import StandIn, Translation, check_options, load_published, num_layers, rename
from hf_targets.gaussian_diffusion import published_dinoiser
from hf_targets.gaussian_diffusion.configuration import DifformerConfig

_FILES = ("checkpoint_best.pt", "checkpoint_avg.pt", "model.pt", "checkpoint_last.pt")
_EMBEDDING = "decoder.embed_tokens.weight"
_RENAMED = {
    "encoder.embed_tokens.": "embed_tokens.",
    "decoder.embed_tokens.": "embed_tokens.",
    "decoder.output_projection.": "lm_head.",
    "decoder.embed_length.": "lengths.embed_length.",
    "decoder.project_in_dim.": "decoder.read.project_in_dim.",
    "decoder.self_cond_proj.": "decoder.read.self_cond_proj.",
}
"""Beginnings of the names of tensors, and of ours; all other names are the same."""
_IGNORED = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor)$")
_PAD = 1
"""The padding id of every fairseq vocabulary; rows of learnt positions up to it are not positions."""
_MUST_BE: dict[str, tuple[Any, Any]] = {
    **dict.fromkeys(
        ("share_all_embeddings", "encoder_learned_pos", "decoder_learned_pos", "embed_norm", "self_cond"), (True, False)
    ),
    **dict.fromkeys(("pred_length_offset", "rescale_timesteps"), (True, False)),
    **dict.fromkeys(("encoder_normalize_before", "decoder_normalize_before", "layernorm_embedding"), (False, False)),
    **dict.fromkeys(("no_scale_embedding", "embed_norm_before_proj", "self_cond_before_proj", "vp_rf"), (False, False)),
    "activation_fn": ("relu", "relu"),
    "rescale_factor": (1.0, 1.0),
}
"""Options of the published program: what they must be, and what they are if the checkpoint does not say."""
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
"""The first four ids of each fairseq vocabulary."""
_OVERWRITE = " #fairseq:overwrite"
"""Ends a line whose piece may be there already: it gets a new id."""


class PublishedDifformer:
    """`from_published` of a Gaussian diffusion model."""

    @classmethod
    def from_published(
        cls, source: str | os.PathLike[str] | Mapping[str, Any], *, hub: Mapping[str, Any] | None = None, **config: Any
    ) -> Self:
        """Return a model with the weights of a checkpoint of a published program, in evaluation mode.

        Sizes follow from the tensors, all else from the options that the checkpoint was trained with. The ids are those
        of fairseq: `<s>` 0, `<pad>` 1, `</s>` 2. `hf_targets.fairseq_tokenizer` makes the tokenizer of its dict.txt;
        save it into the same folder as the model. Those of DINOISER for IWSLT14 have one dictionary for the source and
        one for the text: the tokenizer of the latter decodes. No code of the checkpoint is run.

        Args:
            source: A file, a folder, a name on the Hub, or what `torch.load` returns: a checkpoint, or its `model`
                alone, which then needs `num_attention_heads`.
            hub: Options of the Hub: `revision`, `token`, `cache_dir`, `subfolder` ...
            config: Fields of `DifformerConfig` to set, and `dtype` as `from_pretrained` takes it. New heads
                (`multitoken`) have random weights.
        Raises:
            ValueError: If the file cannot be read; if a tensor is missing, left over or of another shape; if the number
                of heads is unknown; or if the model was trained with an option that this one does not have.
        Source: zhjgao/difformer, both versions of its options; yegcjs/DINOISER, with layers normalised after each part.
        """
        if config.get("curve") is not None:
            raise ValueError("a published model has too few positions for control points, so leave curve out")
        needs = {"num_attention_heads": "4 for IWSLT14, 8 for WMT14"}
        return load_published(
            cls, source, _translate, config, files=_FILES, hub=hub, needs=needs, new_parts=("heads.",)
        )


def _translate(content: Mapping[str, Any], _: Any, __: Any, name: str) -> Translation:
    found = content.get("model", content)
    is_dinoiser = published_dinoiser.FREQUENCIES in found
    embedding = published_dinoiser.EMBEDDING if is_dinoiser else _EMBEDDING
    if embedding not in found:
        raise ValueError(f"{name} is no checkpoint of Difformer or DINOISER: it has no tensor {embedding}")
    options = next(_options({key: value for key, value in content.items() if key != "model"}), None)
    if is_dinoiser:
        fields = published_dinoiser.sizes_of(found)
        fields |= {} if options is None else published_dinoiser.fields_of(options, name)
        return Translation(fields, partial(published_dinoiser.renamed, found))
    fields = {**_sizes(found), **({} if options is None else _fields(options, name))}
    return Translation(fields, partial(_renamed, found))


def _options(content: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings in a checkpoint that hold the options of a model."""
    if isinstance(content, StandIn):
        content = content.state
    elif isinstance(content, Namespace):
        content = vars(content)
    if isinstance(content, Mapping) and depth < 8:
        if "latent_dim" in content and ("model_dim" in content or "diffusion_model_config" in content):
            yield content
        for value in content.values():
            yield from _options(value, depth + 1)


def _fields(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of the configuration that options of the published program set."""
    check_options(options, _MUST_BE, name)
    heads = {options.get(f"{part}_attention_heads") for part in ("encoder", "decoder")}
    if len(heads) != 1:
        raise ValueError(
            f"{name} has other numbers of heads in encoder and decoder, {heads}; this model has one number"
        )
    fields = {
        "num_attention_heads": heads.pop(),
        "num_diffusion_steps": options.get("diffusion_steps", 2000),
        "noise_schedule": options.get("noise_schedule", "linear"),
        # one name before, another since: of the noise in training, unless the variance is kept
        "noise_factor": options.get("rescaling_factor", options.get("noise_factor", 1.0)),
        "word_loss": "rounding" if options.get("rounding_loss") else "anchor",
        "length_loss_weight": options.get("length_loss_factor", 0.1),
    }
    same = ("dropout", "attention_dropout", "activation_dropout", "label_smoothing")
    fields |= {option: options[option] for option in same if option in options}
    return {key: value for key, value in fields.items() if value is not None}


def _sizes(found: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of the configuration that follow from the shapes of tensors."""
    vocab_size, latent_size = found[_EMBEDDING].shape
    sizes = {"vocab_size": vocab_size, "latent_size": latent_size}
    sizes["num_hidden_layers"] = num_layers(found, "decoder.layers.")
    if "decoder.embed_length.weight" in found:
        sizes["num_length_classes"], sizes["hidden_size"] = found["decoder.embed_length.weight"].shape
    if "decoder.layers.0.fc1.weight" in found:
        sizes["intermediate_size"] = len(found["decoder.layers.0.fc1.weight"])
    if positions := [len(found[key]) for key in found if key.endswith("embed_positions.weight")]:
        sizes["max_position_embeddings"] = min(positions) - _PAD - 1
    return {**sizes, "bos_token_id": 0, "pad_token_id": _PAD, "eos_token_id": 2}


def _renamed(found: Mapping[str, Tensor], config: DifformerConfig) -> dict[str, Tensor]:
    """Return tensors by our names; positions without the rows that are none, and at most as many as there are here."""
    tensors = {}
    for key, tensor in found.items():
        if key.endswith("embed_positions.weight"):
            tensor = tensor[_PAD + 1 :][: config.max_position_embeddings]
        if not _IGNORED.match(key):
            tensors[rename(key, _RENAMED)] = tensor
    size = config.hidden_size
    filled = {"decoder.embed_norm.weight": torch.ones(size), "decoder.embed_norm.bias": torch.zeros(size)}
    if config.latent_size == size:  # the published program has no projections then
        filled |= dict.fromkeys(
            ("encoder.project_in_dim.weight", "decoder.read.project_in_dim.weight", "decoder.project_out_dim.weight"),
            torch.eye(size),
        )
    return {**tensors, **{key: value for key, value in filled.items() if key not in tensors}}


def fairseq_tokenizer(dictionary: str | os.PathLike[str]) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a fairseq vocabulary, for text that is already cut into its pieces.

    A text is its pieces with spaces between them, such as "a sle@@ eping dog", as `subword-nmt apply-bpe` writes them.
    `<s>` and `</s>` are put around each text, as for fairseq's non-autoregressive models. `decode` joins the pieces to
    words again. A piece that is not in the vocabulary becomes `<unk>`.

    Args:
        dictionary: The `dict.txt` that `fairseq-preprocess` wrote: a piece and its count on each line.
    Raises:
        ValueError: If a line has another form, a piece comes twice, or the file is empty.
    """
    ids = {token: id_ for id_, token in enumerate(SPECIAL_TOKENS)}
    lines = Path(dictionary).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        piece, _, count = line.removesuffix(_OVERWRITE).rpartition(" ")
        if not piece or not count.isdecimal():
            raise ValueError(
                f'line {number} of {dictionary} must be a piece and its count, such as "the 1042", got {line!r}'
            )
        if piece in ids and not line.endswith(_OVERWRITE):
            raise ValueError(f"line {number} of {dictionary} has {piece!r}, which is there already")
        ids[piece] = len(SPECIAL_TOKENS) + number - 1
    begin, pad, end, unknown = SPECIAL_TOKENS
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=[(begin, ids[begin]), (end, ids[end])]
    )
    between = decoders.Replace(Regex("(?<!@@)$"), " "), decoders.Replace(Regex("@@$"), "")
    tokenizer.decoder = decoders.Sequence([*between, decoders.Fuse(), decoders.Replace(Regex(" $"), "")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        pad_token=pad,
        eos_token=end,
        unk_token=unknown,
        model_input_names=["input_ids", "attention_mask"],
    )
