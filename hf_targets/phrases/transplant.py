"""Input embeddings for another model's tokens: each is the mean of the embeddings of the own tokens that spell it."""

from typing import cast

import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from hf_targets.backbones.quantization import dequantized_copy
from hf_targets.backbones.weight_access import num_rows
from hf_targets.data.tokenization import special_token_ids
from hf_targets.phrases.vocabulary.tokenization import tokenize_mid_text

_SPACE = "▁"  # SentencePiece's sign for a space, U+2581


def transplant_embeddings(
    model: PreTrainedModel,
    base: PreTrainedModel,
    own_tokenizer: PreTrainedTokenizerBase | None,
    tokenizer: PreTrainedTokenizerBase | None,
) -> PreTrainedModel:
    """Return the Transformer of `model`, with an input embedding for the tokens of `base`.

    If both models have the same vocabulary, the embeddings of `model` are kept. Otherwise `own_tokenizer` splits the
    text of each token of `base`, with its leading space, into pieces, and the token's embedding is the mean of their
    embeddings. A special token or a part of a character gets the mean of all embeddings of `model`.

    Args:
        model: The causal language model whose Transformer becomes the phrase encoder.
        base: The model whose tokens the encoder reads.
        own_tokenizer, tokenizer: Of `model` and of `base`; None: loaded by the model's name. If none is found, and both
            vocabularies have the same size, they are assumed to be the same.
    Source: Gee et al. 2022, "Fast Vocabulary Transfer", for the mean of pieces. The dynamic vocabulary paper does not
        say how GPT-2 reads the tokens of TinyLlama.
    """
    num_own = num_rows(cast(nn.Embedding, model.get_input_embeddings()))
    num_tokens = num_rows(cast(nn.Embedding, base.get_input_embeddings()))
    try:
        own_tokenizer = own_tokenizer or _load(model, "encoder_tokenizer")
        tokenizer = tokenizer or _load(base, "tokenizer")
    except ValueError:
        if own_tokenizer is None and tokenizer is None and num_own == num_tokens:
            return cast(PreTrainedModel, model.base_model)
        raise
    same = own_tokenizer.get_vocab() == tokenizer.get_vocab()
    if same and num_own == num_tokens:
        return cast(PreTrainedModel, model.base_model)
    transformer = dequantized_copy(cast(PreTrainedModel, model.base_model))
    old: torch.Tensor = transformer.get_input_embeddings().weight  # pyright: ignore
    with torch.no_grad():
        new = old.mean(dim=0, keepdim=True).repeat(num_tokens, 1)
        if same:  # one embedding has extra rows as padding
            new[: min(num_own, num_tokens)] = old[: min(num_own, num_tokens)]
            texts = []
        else:
            special = special_token_ids(tokenizer)
            numbers = range(min(len(tokenizer), num_tokens))
            texts = ["" if number in special else _text(tokenizer, number) for number in numbers]
        for number, ids in enumerate(tokenize_mid_text(texts, own_tokenizer)):
            if ids:
                new[number] = old[torch.tensor(ids, device=old.device)].mean(dim=0)
    embedding = nn.Embedding(num_tokens, old.shape[1], device=old.device, dtype=old.dtype)
    embedding.weight = nn.Parameter(new)
    transformer.set_input_embeddings(embedding)
    transformer.config.vocab_size = num_tokens
    return transformer


def _load(model: PreTrainedModel, argument: str) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
        if set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids):
            raise ValueError("there are no files of one, of which Transformers makes one without tokens")
        return tokenizer
    except (OSError, ValueError) as error:
        raise ValueError(
            "the phrase encoder and the base model may have different vocabularies, and the tokenizer of "
            f"{model.name_or_path or type(model).__name__} was not found; give {argument}="
        ) from error


def _text(tokenizer: PreTrainedTokenizerBase, number: int) -> str:
    """Return a token's text with its leading space; "" for a part of a character."""
    token = tokenizer.convert_ids_to_tokens(number)
    if not isinstance(token, str):
        return ""
    text = token.replace(_SPACE, " ") if token.startswith(_SPACE) else tokenizer.convert_tokens_to_string([token])
    return "" if "\ufffd" in text else text
