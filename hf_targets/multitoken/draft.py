"""Drafts without heads, for most models that generate: what followed the same tokens in a text or in documents."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.configuration_utils import GenerationMode

from hf_targets.backbones.inputs import check_tokenizer
from hf_targets.backbones.positions import outgrown_positions_named
from hf_targets.backbones.weight_access import is_sharded
from hf_targets.data.tokenization import tokenizer_fingerprint
from hf_targets.multitoken.drafting.assistant import AssistantDrafts, check_assistant
from hf_targets.multitoken.drafting.auto import AutoDrafts
from hf_targets.multitoken.drafting.cache import has_state
from hf_targets.multitoken.drafting.documents import DocumentTexts
from hf_targets.multitoken.drafting.drafts import DraftSettings
from hf_targets.multitoken.drafting.lookup import MOST, Lookup, SortedTexts, TextIndex
from hf_targets.multitoken.drafting.loop import DraftingLoop
from hf_targets.multitoken.drafting.outputs import plain_output
from hf_targets.multitoken.drafting.pass_inputs import PassInputs, tokens_of
from hf_targets.multitoken.drafting.request import can_draft
from hf_targets.multitoken.model import MultiTokenModel
from hf_targets.phrases.vocabulary.store import integers
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan, PhraseVocabulary


@dataclass(eq=False)
class Drafts:
    """What `draft` returns: a decoding loop for `generate(custom_generate=...)`, for any number of calls.

    Attributes:
        num_tokens: The most tokens of a draft.
        in_text: Whether a text is looked up in itself.
        others: Sources beside a text itself: "answers" (what was written so far, a `TextIndex`), and "documents".
        vocabulary: Whose phrases these documents are, if they are.
        most: Tokens to compare.
        tokenizer: Of the documents.
        assistant: What drafts in place of a lookup.
        learnt: What "auto" has learnt, by models without heads, and by the conditions of a call.
    """

    num_tokens: int = 16
    in_text: bool = True
    others: dict[str, Any] = field(default_factory=dict)
    vocabulary: PhraseVocabulary | None = None
    most: int = MOST
    tokenizer: PreTrainedTokenizerBase | None = None
    assistant: PreTrainedModel | None = None
    learnt: WeakKeyDictionary[Any, dict[Any, AutoDrafts]] = field(default_factory=WeakKeyDictionary, repr=False)

    def spans(self, ids: Sequence[int] | Tensor, *, min_tokens: int = 4, **told: Any) -> list[PhraseSpan]:
        """Return the characters of the decoded `ids` that stand in the documents, as `PhraseVocabulary.spans` does.

        They are found in the text, whoever wrote it: runs of `min_tokens` tokens or more, or phrases of a vocabulary.

        Args:
            ids: (time,), such as a row of `generate` without its prompt.
            told: `skip_special_tokens`, as in `PhraseVocabulary.spans`.
        """
        ids = integers(ids)
        if self.vocabulary is not None:
            return self.vocabulary.spans(self.vocabulary.merge_phrases(ids), **told)
        if "documents" not in self.others:
            raise ValueError("there are no documents that a text may stand in; give some: draft(documents=...)")
        return self.others["documents"].spans(ids, min_tokens=min_tokens, **told)

    def lookup_for(
        self, model: Any, input_ids: Tensor, source: Tensor | None, given: Any, *, least: int | None = None
    ) -> Lookup:
        """Return the lookup of some rows: in their prompts, and what the encoder has read.

        Args:
            least: Tokens that must be the same; None: 1, and 2 with several rows or a state, where a pass of several
                tokens costs more.
        """
        inputs, rows, config = PassInputs(model, given), len(input_ids), getattr(model, "backbone", model).config
        documents, size = self.others.get("documents"), config.get_text_config().vocab_size
        if documents is not None and (highest := documents.tokens.max()) >= size:
            raise ValueError(f"documents have the token {highest}, and the model {size} tokens; give its own tokenizer")
        if self.tokenizer is not None:
            check_tokenizer(model, self.tokenizer)
        texts = tokens_of(input_ids, inputs.mask, rows)
        if inputs.has_source and getattr(config, "share_encoder_decoder_embeddings", True):
            sources = tokens_of(source, given.get("attention_mask"), rows)
            texts = map(list.__add__, sources, texts)
        indices = list(map(TextIndex, texts))
        least = least or (2 if rows > 1 or has_state(inputs.cache) else 1)
        return Lookup(self.num_tokens, indices, self.others, self.in_text, least, self.most, size)

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: GenerationConfig,
        inputs_tensor: Tensor | None = None,
        draft_streamer: Any = None,
        draft_tokens: str | int | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode, as `generate` asks its `custom_generate` to.

        Args:
            inputs_tensor: What an encoder has read.
            draft_streamer: Gets the text, as a `streamer` of `generate` does.
            draft_tokens: "auto" decodes a pass without a draft where drafts have not paid.
        """
        mode = generation_config.get_generation_mode()
        if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
            raise ValueError(
                f"drafts cannot be combined with {mode.value.replace('_', ' ')}; leave out its argument, such as "
                "num_beams or prompt_lookup_num_tokens"
            )
        auto = draft_tokens == "auto"
        if draft_tokens is not None and not auto:
            raise ValueError(f'without heads draft_tokens is "auto" or left out, got {draft_tokens!r}; give num_tokens')
        if is_sharded(model) and not auto:
            raise ValueError("drafts take no weights that processes share; decode without them")
        if draft_streamer is not None:
            draft_streamer.put(input_ids.cpu())
        prepared = draft_streamer, logits_processor, stopping_criteria, generation_config
        if self.assistant is not None:
            check_assistant(self.assistant, model)
        if isinstance(model, MultiTokenModel):
            if self.assistant is not None:
                raise ValueError("a model with heads drafts by them; leave out the assistant, or take the .backbone")
            decode: Any = model._decode_by
            output = decode(self, input_ids, inputs_tensor, model_kwargs, *prepared)
        elif not can_draft(model, input_ids, generation_config, stopping_criteria, model_kwargs, auto=auto):
            plain: Any = model._sample
            output = plain(input_ids, *prepared[1:], streamer=draft_streamer, **model_kwargs)
            output = plain_output(output, input_ids, generation_config.eos_token_id)
        else:
            lookup, choice = self.lookup_for(model, input_ids, inputs_tensor, model_kwargs), None
            if auto:
                conditions = len(input_ids), model.dtype, str(input_ids.device), *self.others
                sizes = {"lookup": self.num_tokens, "heads": 0 if self.assistant is None else self.num_tokens}
                new = AutoDrafts(sizes, input_ids.device)
                choice = self.learnt.setdefault(model, {}).setdefault(conditions, new)
            with outgrown_positions_named(model):
                drafting = {"auto": choice, **self._assistance(model, input_ids, model_kwargs, generation_config)}
                output = DraftingLoop(model, input_ids, model_kwargs, *prepared, lookup, **drafting).run(input_ids)
        if "answers" in self.others:
            sequences = output if isinstance(output, Tensor) else output.sequences
            told: Any = generation_config._eos_token_tensor
            ends = set() if told is None else {*told.tolist()}
            for row in sequences[:, input_ids.shape[1] :].tolist():
                stop = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))  # padding follows
                self.others["answers"].extend([*row[:stop], -1])
        return output

    def _assistance(
        self, model: Any, input_ids: Tensor, given: dict[str, Any], config: GenerationConfig
    ) -> dict[str, Any]:
        """Return what lets the assistant draft, as arguments of the loop."""
        if self.assistant is None:
            return {}
        size = model.config.get_text_config().vocab_size
        mask, threshold = given.get("attention_mask"), config.assistant_confidence_threshold
        has_mask = mask is not None and mask.shape == input_ids.shape
        padding = (mask == 0).sum(dim=1) if has_mask else input_ids.new_zeros(len(input_ids))
        assistant = AssistantDrafts(self.assistant, size, padding, 0.4 if threshold is None else threshold)
        return {"settings": DraftSettings(self.num_tokens), "assistant": assistant}


def draft(
    *,
    lookup: bool = True,
    documents: Mapping[str, str] | Iterable[str] | PhraseVocabulary | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    answers: bool = False,
    assistant: PreTrainedModel | None = None,
    num_tokens: int = 16,
) -> Drafts:
    """Return a decoding loop that drafts without heads, for `model.generate(..., custom_generate=draft())`.

    Where the last tokens stood before, the tokens that followed there are drafted, and one pass of the model verifies
    them all. Of several places the one with the longest match is taken. Greedy text equals that of plain greedy
    decoding, sampled text has the same distribution. Most causal and encoder-decoder models of Transformers will do,
    with any number of rows, padding, processors and stopping criteria; a processor that keeps a state from call to call
    takes one row. Refused are those that have several kinds of positions, or a state that begins anew at each pass of
    several tokens (Mamba 1). With another state (Mamba 2 ...) all rows keep as many tokens as the row that keeps
    fewest. A model with heads drafts by both if `draft_tokens` is given too. With `draft_tokens="auto"` a pass drafts
    nothing where drafts have not paid. With `return_dict_in_generate=True` the output has a `draft_report`: passes,
    tokens, accepted tokens by source, the share of drafted ones, and the shares of time that drafting and the model
    took.

    A pass of several tokens rounds otherwise than one of a single token. In bfloat16 a greedy text may so leave the
    plain one where two tokens are nearly equally probable. Zamba 2 and Nemotron-H bound their time step in longer
    passes only, which has the same effect in any type.

    >>> import torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1, eos_token_id=None)).eval()
    >>> asked = {"inputs": torch.tensor([[1, 2, 3, 1, 2, 3]]), "max_new_tokens": 40, "do_sample": False}
    >>> output = model.generate(**asked, custom_generate=draft(), return_dict_in_generate=True)
    >>> torch.equal(output.sequences, model.generate(**asked)), output.draft_report["passes"] < 40
    (True, True)

    Args:
        lookup: Whether to look in the prompt (of an encoder-decoder model in its source) and in what follows it.
        documents: Texts, or a mapping of names to texts such as a `DocumentCollection`, to look in, too; or phrases.
            What stands in them word for word `spans` of the returned object tells of any text.
        tokenizer: The model's, a fast one; a vocabulary has its own.
        answers: Whether the object keeps what it writes, to look in at later calls.
        assistant: A smaller causal model with the same tokenizer, in evaluation mode, which drafts in place of a
            lookup: the tokens that it gives a probability of `assistant_confidence_threshold` (of the generation
            configuration; .4) or more. `generate(assistant_model=...)` of Transformers takes a single row, this any
            number.
        num_tokens: The most tokens of a draft.
    Raises:
        ValueError: If there is nothing to look in, documents come without a tokenizer or have no text, or an assistant
            comes with documents or answers. By `generate`, if the tokenizer cannot be the model's (`check_tokenizer`),
            an assistant has another vocabulary or a state in place of a cache, or it is asked for beams, a cache from
            which tokens cannot be dropped, attention weights or hidden states.
    Source: Saxena 2023, "Prompt lookup decoding"; Oliaro et al. 2024, "SuffixDecoding", for answers and documents, with
        trees of frequencies where this takes the longest match.
    Related: Transformers passes a `custom_generate` neither `streamer` nor `tokenizer` nor `assistant_model`: give
        `draft_streamer` to `generate`, stop strings as `StopStringCriteria`, and an assistant to `draft`.
    """
    if type(num_tokens) is not int or num_tokens < 1:
        raise ValueError(f"num_tokens must be an integer, 1 or more, got {num_tokens!r}")
    if assistant is not None:
        if not isinstance(assistant, nn.Module):
            raise ValueError(f"an assistant is a model, got {assistant!r}; load it")
        if documents is not None or answers:
            raise ValueError("an assistant drafts alone; leave out documents and answers")
        return Drafts(num_tokens, in_text=False, assistant=assistant)
    if not lookup and documents is None and not answers:
        raise ValueError("drafts need something to look in; give lookup=True, documents or answers=True")
    others: dict[str, Any] = {"answers": TextIndex()} if answers else {}
    vocabulary = documents if isinstance(documents, PhraseVocabulary) else None
    if vocabulary is not None:
        if tokenizer is not None and tokenizer_fingerprint(tokenizer) != vocabulary.fingerprint:
            raise ValueError("the vocabulary was made with another tokenizer; make it with the model's")
        tokenizer = vocabulary.tokenizer
        others["documents"] = SortedTexts([vocabulary.token_ids(id_) for id_ in vocabulary])
    elif documents is not None:
        if tokenizer is None:
            raise ValueError("documents need the model's tokenizer; give tokenizer=...")
        others["documents"] = DocumentTexts(cast(Any, documents), tokenizer)
    return Drafts(num_tokens, lookup, others, vocabulary, tokenizer=tokenizer)
