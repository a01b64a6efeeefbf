"""`generate` of a model that copies from documents: a phrase is chosen in one step, and read as its tokens."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# (the model has the backbone; Transformers types `self` as a Protocol with more members)

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from hf_targets.backbones.generation import generation_setting
from hf_targets.phrases.decoding.expansion import Expansion
from hf_targets.phrases.decoding.table import PhraseTable
from hf_targets.phrases.generation import PhraseGenerationMixin, PhraseGenerationState
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary


class CopyGenerationState(PhraseGenerationState):
    """The table of a call of `generate`; `widths` are the most tokens that a row reads for each new step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.widths: list[int] = []

    def read_as(self, steps: Tensor) -> Tensor:
        """Return the tokens of new steps (rows, steps), those of a step padded on the left with -1, (rows, time).

        They follow from the ids and the widths, so that beams that change places take theirs with them.
        """
        expansion, columns = Expansion(self.table.vocabularies), []
        for at, column in enumerate(steps.split(1, dim=1)):
            tokens = [torch.tensor(row or [0], device=steps.device) for row in expansion.rows(column)]
            padded = pad_sequence(tokens, batch_first=True, padding_value=-1, padding_side="left")
            self.widths += [padded.shape[1]] if at == len(self.widths) else []
            columns.append(F.pad(padded, (self.widths[at] - padded.shape[1], 0), value=-1))
        return torch.cat(columns, dim=1)


class CopyGenerationMixin(PhraseGenerationMixin):
    """`PhraseGenerationMixin` for a model that reads phrases as tokens, and returns them as tokens."""

    generation_state = CopyGenerationState

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        documents: PhraseTable | None = None,
        **kwargs: Any,
    ) -> Any:
        """Generate as `GenerationMixin` does, and copy a window of the documents where the model chooses one.

        The ids that it returns are tokens. With `return_dict_in_generate=True` the output also has `copies`: for each
        row the `PhraseSpan`s that were copied, by the characters of `tokenizer.decode(row, skip_special_tokens=True)`,
        each with its sources. Scores are those of steps, over tokens and windows.

        Args:
            documents: What `read_documents` returns; None: nothing is copied, and the text is the backbone's.
            kwargs: `max_new_tokens` and `max_length` count tokens; a window that they cut is no copy. All else is as
                for `DynamicVocabForCausalLM`, such as `phrase_bias`.
        Related: where one row copies more tokens than another, the cache of the other is padded; attention with a
            window shorter than the text then sees less of it. Take one row there.
        Raises:
            ValueError: As for `DynamicVocabForCausalLM`, without `input_ids`, or with a cache of fixed length.
        Source: Lan et al. 2023.  Departs: they read the whole text again in each step, we keep a cache.
        """
        if documents is None:
            return super().generate(inputs, generation_config, *args, **kwargs)
        prompt = kwargs.get("input_ids") if inputs is None else inputs
        if prompt is None or "static" in str(kwargs.get("cache_implementation")):
            raise ValueError("copying needs input_ids, and a cache that grows, as phrases of several rows are padded")

        def setting(name: str) -> Any:
            return kwargs.get(name, generation_setting(name, generation_config, self.generation_config))

        start = prompt.shape[1]
        if (limit := setting("max_new_tokens")) is None:
            limit = (setting("max_length") or start + 20) - start  # as Transformers has it
        pad = setting("eos_token_id") if (pad := setting("pad_token_id")) is None else pad
        kwargs.pop("max_length", None)
        kwargs |= {"phrases": documents, "max_new_tokens": limit, "max_new_static_tokens": limit}
        output = super().generate(inputs, generation_config, *args, **kwargs)
        ids = output if isinstance(output, Tensor) else output.sequences
        expansion = Expansion(documents.vocabularies)
        owners = [expansion.vocabularies[expansion.vocabulary(row, len(ids))] for row in range(len(ids))]
        rows = [_cut(row, owner, start + limit) for row, owner in zip(ids.tolist(), owners, strict=True)]
        tokens = [torch.tensor(owner.expand(row), device=ids.device) for row, owner in zip(rows, owners, strict=True)]
        pad = torch.as_tensor(0 if pad is None else pad).flatten()[0]  # there may be several end tokens
        ids = pad_sequence(tokens, batch_first=True, padding_value=float(pad))
        if isinstance(output, Tensor):
            return ids
        output.sequences = ids
        output["copies"] = [one.spans(row, skip_special_tokens=True) for one, row in zip(owners, rows, strict=True)]
        return output

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *, phrases: Any = None, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Prepare a step of `generate`: the backbone reads the tokens of the window that the last step chose."""
        if phrases is None or input_ids.shape[1] == phrases.prompt_length:
            given = {"phrases": phrases, "inputs_embeds": inputs_embeds, **kwargs}
            return super().prepare_inputs_for_generation(input_ids, **given)
        prompt, steps = input_ids[:, : phrases.prompt_length], input_ids[:, phrases.prompt_length :]
        new, mask = phrases.read_as(steps), kwargs.pop("attention_mask", None)
        mask = torch.ones_like(input_ids) if mask is None else mask  # Transformers leaves out one without padding
        mask = torch.cat([mask[:, : mask.shape[1] - steps.shape[1]], (new >= 0).to(mask.dtype)], dim=1)
        if kwargs.get("next_sequence_length") is not None:
            kwargs["next_sequence_length"] = phrases.widths[-1]
        if kwargs.get("position_ids") is not None:
            kwargs["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)
        text = torch.cat([prompt, new.clamp(min=0)], dim=1)
        inputs = self.backbone.prepare_inputs_for_generation(text, attention_mask=mask, **kwargs)
        return {**inputs, "phrases": phrases.table_at(input_ids)}


def _cut(row: list[int], vocabulary: PhraseVocabulary, most: int) -> list[int]:
    """Return the steps of a text of `most` tokens; of a window that does not fit the first tokens."""
    steps, count = [], 0
    for id_ in row:
        tokens = vocabulary.expand([id_])
        steps += [id_] if count + len(tokens) <= most else tokens[: max(0, most - count)]
        count += len(tokens)
    return steps
