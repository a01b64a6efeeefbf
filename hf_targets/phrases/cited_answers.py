"""Answers to questions with documents, generated with the documents' phrases, and where the answers come from."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.inputs import check_tokenizer
from hf_targets.backbones.positions import max_positions
from hf_targets.backbones.weight_access import execution_device, num_rows
from hf_targets.data.prompts import Turns, encode_prompt
from hf_targets.data.words import check_texts
from hf_targets.evaluation.timing import settled_time
from hf_targets.phrases.citations import citing_phrases, mark_sources, numbered_documents
from hf_targets.phrases.highlighting import GeneratedText
from hf_targets.phrases.mining.miner import MarkablePhrases, PhraseMiner
from hf_targets.phrases.model import DynamicVocabForCausalLM
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan, PhraseVocabulary

Marking = Literal["phrases", "afterwards"]


@dataclass(frozen=True)
class CitedAnswer:
    """An answer with its markers, up to its first line break.

    Attributes:
        spans: Its phrases, by its characters; the name of a document in their sources is its number.
        num_characters: Of it, without white space and markers.
        num_from_documents: How many of them stand in phrases.
        num_phrases: Phrases that the model could choose from.
        num_steps, num_tokens: As in `GeneratedText`, of all that was generated.
        seconds: Of "mining" and "encoding" phrases and of "generation".
    """

    text: str
    spans: tuple[PhraseSpan, ...]
    num_characters: int
    num_from_documents: int
    num_phrases: int
    num_steps: int
    num_tokens: int
    seconds: Mapping[str, float]


@torch.no_grad()
def answer_with_phrases(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Turns,
    documents: Sequence[str],
    miner: PhraseMiner | None,
    *,
    marking: Marking = "phrases",
    new_tokens: int = 300,
    **arguments: Any,
) -> CitedAnswer:
    """Return the answer to one prompt.

    Args:
        model: With a dynamic vocabulary, or any causal model. The latter writes tokens, in which the documents'
            phrases are found afterwards: this needs no training, and the text is the model's own.
        prompt: Text as it is, or messages for the chat template of the tokenizer.
        documents: Texts of the prompt's documents, in the order of their numbers.
        miner: Finds the documents' phrases, of which `MarkablePhrases` are taken; None: without phrases, so that
            markers are tokens.
        marking: "phrases": they end with their document's marker, as in the paper. "afterwards": they have none, and
            the text gets a marker after each of them.
        new_tokens: At most, phrases counted by their tokens.
        arguments: Passed to `generate`.
    Raises:
        ValueError: If there is no document, phrases with markers are asked for of a model without a dynamic vocabulary
            or with a tokenizer that cannot write a marker, or the prompt is longer than the model's positions.
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 3.5.  Departs: `marking="afterwards"` is ours.
    """
    if marking not in get_args(Marking) or arguments.get("num_return_sequences", 1) != 1:
        raise ValueError(
            f"marking must be of {', '.join(get_args(Marking))} and answers one, got {marking!r}, {arguments}"
        )
    check_texts([prompt] if isinstance(prompt, str) else [turn.get("content") for turn in prompt], "prompts")  # pyright: ignore
    named = numbered_documents(documents)
    writes_phrases = isinstance(model, DynamicVocabForCausalLM)
    if miner is not None and marking == "phrases" and not writes_phrases:
        raise ValueError(
            f'a {type(model).__name__} has no phrase encoder; choose marking="afterwards", or leave out the miner'
        )
    check_tokenizer(model, tokenizer)
    device = execution_device(model)
    vocab_size = num_rows(model.get_output_embeddings())  # pyright: ignore[reportArgumentType]
    inputs = encode_prompt(tokenizer, prompt).to(device)
    limit, length = max_positions(model.config), inputs["input_ids"].shape[1]
    if limit is not None and length > limit:
        raise ValueError(
            f"a prompt must fit into the {limit} positions that the model has or was trained on, got {length} tokens; "
            "shorten the documents"
        )
    begin = settled_time(device)
    if miner is None:
        vocabulary = PhraseVocabulary(tokenizer, vocab_size=vocab_size)
    elif marking == "phrases":
        vocabulary = citing_phrases(documents, tokenizer, miner, vocab_size=vocab_size)
    else:
        markable = MarkablePhrases(miner)
        vocabulary = PhraseVocabulary.from_documents(named, tokenizer, markable, vocab_size=vocab_size)
    mined = settled_time(device)
    limits: dict[str, Any] = {"max_new_tokens": new_tokens}
    if len(vocabulary) and writes_phrases:
        table = model.phrase_table(vocabulary)
        limits = {"phrases": table, "max_new_static_tokens": new_tokens}
    encoded = settled_time(device)
    pad = model.generation_config.pad_token_id
    ending = {"stop_strings": ["\n"], "tokenizer": tokenizer, "pad_token_id": 0 if pad is None else pad}
    output: Any = model.generate(**inputs, **{**limits, **ending, **arguments})  # pyright: ignore[reportCallIssue]
    end = settled_time(device)
    ids, prompt_length = output[0].tolist(), inputs["input_ids"].shape[1]
    if not writes_phrases:
        ids[prompt_length:] = vocabulary.merge_phrases(ids[prompt_length:])
    written = GeneratedText.of(ids, prompt_length, vocabulary)
    text, spans = first_line(written.text, written.spans)
    if marking == "afterwards":
        text, spans = mark_sources(text, spans, {name: int(name) for name in named})
    left_out = {place for found in re.finditer(r"\s|\[\d+\]", text) for place in range(*found.span())}
    counted = {*range(len(text))} - left_out
    from_documents = counted & {place for span in spans for place in range(span.start, span.end)}
    seconds = {"mining": mined - begin, "encoding": encoded - mined, "generation": end - encoded}
    num_steps = written.num_steps if writes_phrases else written.num_tokens
    counts = len(counted), len(from_documents), written.num_phrases, num_steps, written.num_tokens
    return CitedAnswer(text, spans, *counts, seconds)


def first_line(text: str, spans: Sequence[PhraseSpan]) -> tuple[str, tuple[PhraseSpan, ...]]:
    """Return a text up to its first line break, without white space around it, and the phrases that are whole in it.

    >>> first_line(" on the mat\\nand", [PhraseSpan(3, 11, 9, " the mat", ()), PhraseSpan(11, 15, 10, "\\nand", ())])
    ('on the mat', (PhraseSpan(start=2, end=10, phrase_id=9, text=' the mat', sources=()),))
    """
    begin = len(text) - len(text.lstrip())
    line = text[begin:].partition("\n")[0].rstrip()
    moved = (replace(span, start=max(span.start - begin, 0), end=span.end - begin) for span in spans)
    return line, tuple(span for span in moved if 0 < span.end <= len(line))
