"""Prefixes continued by a model, with phrases or without, and measures of the continuations: the paper's table 1."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.progress import progress
from hf_targets.data.words import words_and_marks
from hf_targets.evaluation.mauve import mauve_score
from hf_targets.evaluation.perplexity import num_prefix_tokens, perplexity_of_generated_texts
from hf_targets.evaluation.repetition import measure_repetition
from hf_targets.evaluation.timing import settled_time

Expand = Callable[[int], list[int]]
WordsOf = Callable[[str], Sequence[str]]
"""Cuts a text into words."""


@dataclass(frozen=True)
class Prefix:
    """The beginning of a text and its true continuation, as static tokens."""

    tokens: list[int]
    reference: list[int]


def take_prefixes(
    rows: Iterable[Sequence[int]],
    num_prefixes: int,
    *,
    prefix_tokens: int = 32,
    new_tokens: int = 128,
) -> list[Prefix]:
    """Return prefixes and their references from a text, spread evenly over it and without overlap.

    A prefix is the beginning of a row with at least `prefix_tokens` tokens, so headings are left out, and it begins a
    sentence if rows do.

    Args:
        rows: Token ids of a text, in order; each row is a paragraph or a sentence.
        num_prefixes: Number of prefixes, 1 or more.
        prefix_tokens: Length of a prefix in tokens.
        new_tokens: Length of a reference in tokens; it may continue into the next rows.
    Raises:
        ValueError: If the text is too short for that many prefixes.
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 3.2: the model reads the first 32 tokens of each
        test sample and writes 128. The paper does not define a sample.

    >>> take_prefixes([[1], [2, 3, 4], [5, 6]], 2, prefix_tokens=2, new_tokens=0)
    [Prefix(tokens=[2, 3], reference=[]), Prefix(tokens=[5, 6], reference=[])]
    """
    if prefix_tokens < 1 or num_prefixes < 1:
        raise ValueError(f"there must be a prefix, of a token or more, got {num_prefixes=} and {prefix_tokens=}")
    ids: list[int] = []
    row_starts = []
    for row in rows:
        row_starts += [len(ids)] if len(row) >= prefix_tokens else []
        ids += map(int, row)
    length = prefix_tokens + new_tokens
    starts, free_from = [], 0
    for start in row_starts:
        if free_from <= start <= len(ids) - length:
            starts.append(start)
            free_from = start + length
    if num_prefixes > len(starts):
        raise ValueError(
            f"a text of {len(ids)} tokens has at most {len(starts)} prefixes of {prefix_tokens} tokens with "
            f"{new_tokens} tokens after each, got num_prefixes={num_prefixes}; ask for fewer"
        )
    starts = [starts[len(starts) * number // num_prefixes] for number in range(num_prefixes)]
    return [Prefix(ids[s : s + prefix_tokens], ids[s + prefix_tokens : s + length]) for s in starts]


Prepare = Callable[[Sequence[Prefix], int], tuple[dict[str, Any], Sequence[Expand]]]


@dataclass(frozen=True)
class Continuations:
    """The continuations that a model generated, one for each prefix.

    Attributes:
        tokens: Static tokens of each continuation, phrases expanded, cut to `new_tokens`.
        num_steps: Steps of each continuation, the step that exceeds `new_tokens` included.
        num_phrases: Number of steps of each continuation that were phrases.
        seconds: Time of `generate` for each text, prefix included; the rows of a batch share its time equally.
        phrase_seconds: Time to make and embed the phrase vocabulary of each text, which can be done in advance.
    """

    tokens: list[list[int]]
    num_steps: list[int]
    num_phrases: list[int]
    seconds: list[float]
    phrase_seconds: list[float]


@torch.no_grad()
def continue_prefixes(
    model: PreTrainedModel,
    prefixes: Sequence[Prefix],
    *,
    new_tokens: int = 128,
    before: Sequence[int] = (),
    prepare: Prepare | None = None,
    batch_size: int = 8,
    **arguments: Any,
) -> Continuations:
    """Continue prefixes of equal length with `new_tokens` static tokens each; dropout is off meanwhile.

    Args:
        before: Tokens that the model reads before each prefix, such as a message that asks for the text
            (`data.prompts.encode_prompt`); they are no part of it.
        prepare: Called with the prefixes of each batch and `new_tokens`. It returns arguments of `generate` for the
            batch, and for each row a function from the id of a step to its static tokens. Arguments `input_ids` and
            `attention_mask` are read in place of the prefixes' own, such as under another tokenizer. None: each step is
            a static token.
        batch_size: Number of prefixes in a call of `generate`.
        arguments: Passed to `generate`. By default the end token does not end a text, so all have one length. With an
            `eos_token_id` a text ends with that token, and the padding after it does not count.
    Raises:
        ValueError: If several texts are asked for after each prefix, or prefixes differ in length.
    """
    if arguments.get("return_dict_in_generate") or (arguments.get("num_return_sequences") or 1) > 1:
        raise ValueError("a prefix has one continuation; leave out num_return_sequences and return_dict_in_generate")
    lengths = sorted({len(prefix.tokens) for prefix in prefixes})
    if batch_size < 1 or len(lengths) > 1:
        told = f"got {batch_size} and lengths of {lengths} tokens; cut the prefixes to the shortest"
        raise ValueError(f"batch_size must be 1 or more, and prefixes have one length, {told}")
    results = Continuations([], [], [], [], [])
    pad = model.generation_config.pad_token_id
    arguments = {"eos_token_id": None, "pad_token_id": 0 if pad is None else pad, **arguments}
    ends = set(np.atleast_1d(arguments["eos_token_id"]).tolist())
    with without_dropout(model), progress(len(prefixes), "generating continuations", unit="prefix") as bar:
        for start in range(0, len(prefixes), batch_size):
            group = prefixes[start : start + batch_size]
            rows = [[*before, *prefix.tokens] for prefix in group]
            ids = torch.tensor(rows, device=execution_device(model))
            begun_on, mask = ids.device, torch.ones_like(ids)
            begin = settled_time(begun_on)
            prepared, expansions = prepare(group, new_tokens) if prepare else ({"max_new_tokens": new_tokens}, None)
            ids, mask = prepared.pop("input_ids", ids), prepared.pop("attention_mask", mask)
            ready = settled_time(begun_on)
            output: Any = model.generate(ids, attention_mask=mask, **prepared, **arguments)  # pyright: ignore
            end = settled_time(begun_on)
            for number, row in enumerate(output[:, ids.shape[1] :].tolist()):
                expand = expansions[number] if expansions else lambda id_: [id_]
                length = next((place for place, id_ in enumerate(row, start=1) if id_ in ends), len(row))
                tokens, steps = _cut(row[:length], expand, new_tokens)
                results.tokens.append(tokens)
                results.num_steps.append(steps)
                results.num_phrases.append(sum(expand(id_) != [id_] for id_ in row[:steps]))
                results.seconds.append((end - ready) / len(group))
                results.phrase_seconds.append((ready - begin) / len(group))
            bar.update(len(group))
    return results


def _cut(row: list[int], expand: Expand, new_tokens: int) -> tuple[list[int], int]:
    """Return the first `new_tokens` static tokens of a row, and the number of steps for them."""
    tokens: list[int] = []
    for number, id_ in enumerate(row):
        if len(tokens) >= new_tokens:
            return tokens[:new_tokens], number
        tokens += expand(id_)
    return tokens[:new_tokens], len(row)


def repetition_units(
    continuations: Continuations,
    prefixes: Sequence[Prefix],
    tokenizer: PreTrainedTokenizerBase,
    words: WordsOf | None = words_and_marks,
) -> list[Sequence[Hashable]]:
    """Return the units of each text among which repetition counts n-grams.

    Args:
        words: The words of prefix and continuation, once the continuation is cut to the tokens of its reference where
            that is shorter. Published figures count spaCy's, `lambda text: [token.text for token in nlp(text)]`. None:
            the tokens of the continuation alone.
    Source: gmftbyGMFTBY/Copyisallyouneed, evaluation/diversity, with which the figures of Lan et al. 2023 were made.
    """
    if words is None:
        return list(continuations.tokens)
    pairs = zip(prefixes, continuations.tokens, strict=True)
    cut = [prefix.tokens + tokens[: len(prefix.reference) or None] for prefix, tokens in pairs]
    return [words(str(tokenizer.decode(tokens))) for tokens in cut]


def measure_continuations(
    continuations: Continuations,
    prefixes: Sequence[Prefix],
    tokenizer: PreTrainedTokenizerBase,
    *,
    words: WordsOf | None = words_and_marks,
    other_tokenizers: Mapping[str, PreTrainedTokenizerBase] | None = None,
    judge: PreTrainedModel | None = None,
    judge_tokenizer: PreTrainedTokenizerBase | None = None,
    feature_model: PreTrainedModel | str | None = None,
    feature_tokenizer: PreTrainedTokenizerBase | None = None,
) -> dict[str, float]:
    """Return the columns of tables 1 and 3, by name.

    Repetition and diversity (in percent) count words of prefix and continuation. MAUVE (in percent, scaling 2)
    compares prefixes with continuations to prefixes with references. `generated_ppl` is the perplexity of the
    continuations under the judge; repetitive text has a low one. `steps` are those of a text; a model that writes
    tokens alone has as many as tokens. `nsl` is the number of tokens of a text that the tokenizer cuts anew, whichever
    model wrote it: table 3 has the steps of the paper's model, and the NSL of its texts for the others. Latencies are
    in seconds a text: the mean, as in the paper, the median and the 95th percentile. The rows of a batch share a time.
    Bytes per step, or per token of `nsl`, are UTF-8 bytes of all texts over these.

    Args:
        words: As in `repetition_units`.
        other_tokenizers: By a name, tokenizers for columns such as `nsl_NAME`.
        judge: The model that gives `generated_ppl`; None: without this column.
        judge_tokenizer: The judge's tokenizer, if it differs from that of the texts.
        feature_model: The model, or its name, whose features MAUVE clusters; None: without this column.
        feature_tokenizer: The tokenizer of a feature model that is not given by name.
    """
    texts = [str(tokenizer.decode(tokens)) for tokens in continuations.tokens]
    num_bytes = sum(len(text.encode()) for text in texts)
    repetition = measure_repetition(repetition_units(continuations, prefixes, tokenizer, words))
    columns: dict[str, float] = {}
    if feature_model is not None:
        pairs = zip(prefixes, continuations.tokens, strict=True)
        generated = [str(tokenizer.decode(prefix.tokens + tokens)) for prefix, tokens in pairs]
        references = [str(tokenizer.decode(prefix.tokens + prefix.reference)) for prefix in prefixes]
        given: Any = {"feature_model": feature_model, "tokenizer": feature_tokenizer}
        columns["mauve"] = 100 * mauve_score(generated, references, **given)
    columns |= {
        "rep_2": repetition.rep_2,
        "rep_3": repetition.rep_3,
        "rep_4": repetition.rep_4,
        "diversity": 100 * repetition.diversity,
        "latency": fmean(continuations.seconds),
        "latency_median": median(continuations.seconds),
        "latency_p95": float(np.quantile(continuations.seconds, 0.95)),
        "phrase_latency": fmean(continuations.phrase_seconds),
    }
    if judge is not None:
        rows: Any = [prefix.tokens + tokens for prefix, tokens in zip(prefixes, continuations.tokens, strict=True)]
        lengths = [len(prefix.tokens) for prefix in prefixes]
        if judge_tokenizer is not None:
            rows = [tokenizer.decode(row) for row in rows]
            # a prefix may end within a character, which is then not of the prefix
            begins: Any = [str(tokenizer.decode(prefix.tokens)).rstrip("\ufffd") for prefix in prefixes]
            lengths = num_prefix_tokens(rows, begins, judge_tokenizer)
        judged = perplexity_of_generated_texts(judge, rows, judge_tokenizer, prefix_lengths=lengths)
        columns["generated_ppl"] = judged.perplexity
    total = sum(continuations.num_steps)
    for name, other in {"": tokenizer, **{f"_{name}": one for name, one in (other_tokenizers or {}).items()}}.items():
        counts = [len(other(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]
        columns |= {f"nsl{name}": fmean(counts), f"bytes_per_token{name}": num_bytes / sum(counts)}
    return columns | {
        "steps": fmean(continuations.num_steps),
        "bytes_per_step": num_bytes / total,
        "phrase_share": 100 * sum(continuations.num_phrases) / total,
    }
