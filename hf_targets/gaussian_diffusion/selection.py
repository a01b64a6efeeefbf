"""The choice among several texts for one source: the one most like the others, or the one another model prefers."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from hf_targets.backbones.inputs import check_ids
from hf_targets.backbones.weight_access import execution_device, num_rows
from hf_targets.extras import require
from hf_targets.maths.losses import IGNORED

_MOST_LOGITS = 2**26


def select_by_bleu(candidates: Sequence[str]) -> int:
    """Return the number of the candidate whose mean BLEU is highest as the reference of all others.

    score_i = sum over j != i of BLEU(hypothesis s_j, reference s_i) / (n - 1), with sacreBLEU's sentence BLEU. BLEU is
    not symmetric: this is the direction of Difformer's published program. Empty texts are chosen only if all are empty.
    Of equal scores the first wins. BLEU is computed once for each pair of different texts.

    Raises:
        ValueError: If there is no candidate.
        ImportError: If there are several texts, and sacrebleu is not installed.
    Source: Gao et al. 2024, section 5.1; Kumar and Byrne 2004, "Minimum Bayes-Risk Decoding".
    Departs: DINOISER's program takes BLEU in the other direction, and does not choose once among all candidates.

    >>> select_by_bleu(["a cat sat there", "the cat sat on a mat", "the cat sat on the mat"])
    1
    """
    if not candidates:
        raise ValueError("minimum Bayes risk chooses among texts, got none")
    texts = [text.strip() for text in candidates]
    counts = {text: texts.count(text) for text in dict.fromkeys(texts) if text}
    if len(counts) < 2:
        return texts.index(next(iter(counts), texts[0]))
    bleu: Any = require("sacrebleu.metrics.bleu", extra="eval").BLEU(effective_order=True)  # takes a while to import

    def score(reference: str) -> float:
        likeness = {text: bleu.sentence_score(text, [reference]).score for text in counts if text != reference}
        likeness[reference] = 100.0
        return sum(likeness[text] * (count - (text == reference)) for text, count in counts.items())

    scores = {text: score(text) for text in counts}
    return texts.index(max(scores, key=lambda text: scores[text]))


class LikelihoodRescorer:
    """Scores texts by their mean log-likelihood under an encoder-decoder model: the highest has the least perplexity.

    Give it to `generate` of a Gaussian diffusion model, with `selection="rescoring"`. Both models must have the same
    tokenizer. Figures with it are not comparable with those without: a second model has had its say.

    Args:
        model: Any encoder-decoder model, in evaluation mode, such as the teacher of a distillation.
    Raises:
        ValueError: If the model is in training mode.
    Related: `--ppl-mbr` of the published program of Difformer. A begin token, which texts of published models have,
        does not count; a text without words comes last.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        if model.training:
            raise ValueError("a rescorer must be in evaluation mode, as dropout changes its scores; call model.eval()")
        self.model = model

    @torch.no_grad()
    def __call__(self, texts: Tensor, sources: Tensor, mask: Tensor) -> Tensor:
        """Return the scores (rows,) of texts (rows, time) for sources (rows, source) with their mask.

        Raises:
            ValueError: If an id is none of the model's.
        """
        config = self.model.config
        if not len(texts):
            return torch.zeros(0, device=texts.device)
        check_ids(texts, cast(int, config.get_text_config(decoder=True).vocab_size), "texts")
        check_ids(sources, num_rows(self.model.get_input_embeddings()), "sources")
        is_text = texts != config.pad_token_id
        labels, counted = texts.masked_fill(~is_text, IGNORED), is_text.clone()
        begin = getattr(config, "bos_token_id", None)
        if begin is not None:
            counted[:, :1] &= texts[:, :1] != begin
        scores = torch.full((len(texts),), -float("inf"), device=texts.device)
        end = getattr(config, "eos_token_id", None)
        ends = end if isinstance(end, list) else [end]
        special = [one for one in (config.pad_token_id, begin, *ends) if one is not None]
        has_words = ~torch.isin(texts, torch.tensor(special, device=texts.device)).all(dim=1)
        if has_words.any():
            rows = (part[has_words.to(part.device)] for part in (sources, mask, labels, counted))
            scores[has_words] = self._means(*rows).to(scores)
        return scores

    def _means(self, sources: Tensor, mask: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
        """Return the mean log-likelihood of the counted labels of each row, (rows,)."""
        vocab_size = cast(int, self.model.config.get_text_config(decoder=True).vocab_size)
        size, sums = max(1, _MOST_LOGITS // (labels.shape[1] * vocab_size)), []
        for parts in zip(*(part.split(size) for part in (sources, mask, labels, counted)), strict=True):
            source, source_mask, targets, kept = (part.to(execution_device(self.model)) for part in parts)
            read = {"input_ids": source, "attention_mask": source_mask, "labels": targets, "return_dict": True}
            logits = self.model(**read).logits
            wide = torch.promote_types(logits.dtype, torch.float32)
            nlls = F.cross_entropy(logits.to(wide).mT, targets, reduction="none")
            sums.append(-nlls.masked_fill(~kept, 0.0).sum(dim=1).to(labels.device))
        return torch.cat(sums) / counted.sum(dim=1).to(labels.device)
