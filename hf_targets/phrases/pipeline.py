"""The pipeline `text-generation` of Transformers, with phrases in its texts."""

from typing import Any

from torch import tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import TextGenerationPipeline

from hf_targets.phrases.decoding.expansion import Expansion
from hf_targets.phrases.decoding.table import vocabularies_of


class PhraseTextGenerationPipeline(TextGenerationPipeline):
    """Transformers' pipeline for any model. The phrases of `pipeline(prompt, phrases=...)` are expanded into tokens.

    `import hf_targets` makes it the class of `pipeline("text-generation")`. `phrases` are those of `generate`: one
    vocabulary for all rows, or one for each row of a batch.
    """

    def _forward(self, model_inputs: Any, **generate_kwargs: Any) -> Any:
        outputs = super()._forward(model_inputs, **generate_kwargs)
        phrases = generate_kwargs.get("phrases")
        if phrases is None:
            return outputs
        sequences = outputs["generated_sequence"]  # (prompts, texts of each prompt, steps)
        rows = [tensor(row) for row in Expansion(vocabularies_of(phrases)).rows(sequences.flatten(0, 1))]
        tokenizer: Any = self.tokenizer
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        if pad is None and len(rows) > 1:
            raise ValueError("texts of several lengths need padding, and the tokenizer has no token for it; set one")
        expanded = pad_sequence(rows, batch_first=True, padding_value=pad or 0)
        return {**outputs, "generated_sequence": expanded.reshape(*sequences.shape[:2], -1)}
