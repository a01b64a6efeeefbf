"""The data sets of a Trainer that hold conversations, or prompts with completions, as the rows of tokens it reads."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.new_parts import unwrapped
from hf_targets.backbones.positions import position_limit
from hf_targets.data.conversations import conversation_rows, holds_conversations
from hf_targets.data.token_rows import NUM_WORDS
from hf_targets.maths.losses import IGNORED


class ConversationRows:
    """Makes rows of tokens of data sets with `messages`, or `prompt` and `completion`; others stay as they are.

    Args:
        model: Whose positions limit a row where `max_row_length` is None.
        tokenizer: Of the model; it is needed once such a data set comes.
    """

    def __init__(self, model: nn.Module | None, tokenizer: Any, max_row_length: int | None) -> None:
        self.model, self.tokenizer, self.max_row_length, self.has_made = model, tokenizer, max_row_length, False

    def __call__(self, data: Any, name: str) -> Any:
        """Return a data set, or a mapping of some, as rows.

        Raises:
            ValueError: If there is no tokenizer, or as `conversation_rows` does.
        """
        if isinstance(data, dict):
            return {key: self(dataset, key) for key, dataset in data.items()}
        if not holds_conversations(data):
            return data
        if not isinstance(self.tokenizer, PreTrainedTokenizerBase):
            raise ValueError(f"the {name} data has texts, and there is no tokenizer; give processing_class=tokenizer")
        limit = self.max_row_length
        if limit is None and self.model is not None:
            limit = position_limit(cast(PreTrainedModel, unwrapped(self.model)))
        self.has_made = True
        return conversation_rows(data, self.tokenizer, limit, name=f"the {name} data")

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return a batch of rows, padded on the right to the longest; those without labels predict their tokens."""
        ids = (getattr(self.tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
        fills = {"input_ids": next((id_ for id_ in ids if isinstance(id_, int)), 0), "attention_mask": 0}
        fills |= {"labels": IGNORED}
        whole = [{"labels": row["input_ids"], "attention_mask": [1] * len(row["input_ids"]), **row} for row in rows]
        columns = {name: [torch.as_tensor(row[name]) for row in whole] for name in fills}
        counts = {name: torch.tensor([row[name] for row in rows]) for name in (NUM_WORDS,) if name in rows[0]}
        return {**counts, **{name: pad_sequence(columns[name], True, fill) for name, fill in fills.items()}}
