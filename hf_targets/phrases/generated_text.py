"""What a model wrote with phrases, apart from its prompt, and in numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from transformers import PreTrainedTokenizerBase

from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan, PhraseVocabulary

WITHOUT_PHRASES = (
    "No phrase was used: at each step the model gave other tokens more probability. Greedy decoding takes the most "
    "probable token or phrase alone, and sampling (--do_sample true) also takes others. If sampling uses none either, "
    "give documents about the subject of the prompt, or train the model longer."
)
"""What to tell a user whose text has no phrase."""


@dataclass(frozen=True)
class GeneratedText:
    """A prompt, and what a model wrote after it.

    Attributes:
        prompt, text: Characters; special tokens are left out.
        spans: The phrases of `text`, by its characters.
        num_phrases: Phrases that the model could choose from.
        num_steps: Steps that the model took, each of a token or a phrase.
        num_tokens: Tokens that it wrote, phrases counted by theirs.
    """

    prompt: str
    text: str
    spans: tuple[PhraseSpan, ...]
    num_phrases: int
    num_steps: int
    num_tokens: int

    @classmethod
    def of(cls, ids: Sequence[int], prompt_length: int, vocabulary: PhraseVocabulary) -> Self:
        """Return what one row of `generate` says.

        Args:
            ids: Tokens and phrases, (time,), the prompt's first. Padding at the end is left out.
            prompt_length: How many of them are the prompt.
        """
        ids = _without_padding(ids, prompt_length, vocabulary.tokenizer)
        new = ids[prompt_length:]
        prompt = vocabulary.decode(ids[:prompt_length], skip_special_tokens=True)
        # decoded as a whole: some tokenizers drop the space before a text's first word
        text = vocabulary.decode(ids, skip_special_tokens=True)[len(prompt) :]
        found = vocabulary.spans(ids, skip_special_tokens=True)
        spans = [replace(span, start=span.start - len(prompt), end=span.end - len(prompt)) for span in found]
        after = tuple(span for span in spans if span.start >= 0)
        return cls(prompt, text, after, len(vocabulary), len(new), len(vocabulary.expand(new)))

    @property
    def statistics(self) -> str:
        """The numbers in one line, with their units."""
        cited = {source.document for span in self.spans for source in span.sources}
        documents = f"{len(cited):,} {'document' if len(cited) == 1 else 'documents'}"
        rate = self.num_tokens / self.num_steps if self.num_steps else 0.0
        return (
            f"{self.num_phrases:,} phrases at hand, {len(self.spans):,} used; {self.num_tokens:,} tokens in "
            f"{self.num_steps:,} steps, {rate:.2f} tokens a step; {documents} cited"
        )


def _without_padding(ids: Sequence[int], prompt_length: int, tokenizer: PreTrainedTokenizerBase) -> Sequence[int]:
    """Return a row without the padding after its text; a tokenizer without a pad token pads with its end token."""
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    pad = end if pad is None else pad
    length = len(ids)
    while length > prompt_length and ids[length - 1] == pad:
        length -= 1
    ends_text = pad == end and length < len(ids)  # the first of them is no padding
    return ids[: length + ends_text]
