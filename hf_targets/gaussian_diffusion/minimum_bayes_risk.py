"""The choice among several texts for one source: the one that is most like the others."""

from collections.abc import Sequence

from hf_targets.extras import require


def select_by_bleu(candidates: Sequence[str]) -> int:
    """Return the number of the candidate whose mean BLEU is highest as the reference of all others.

    score_i = sum over j != i of BLEU(hypothesis s_j, reference s_i) / (n - 1), with sacreBLEU's sentence BLEU. BLEU is
    not symmetric: this is the direction of Difformer's published program, and DINOISER's takes the other. Empty texts
    are chosen only if all are empty. Of equal scores the first wins. BLEU is computed once for each pair of different
    texts.

    Raises:
        ValueError: If there is no candidate.
        ImportError: If there are several texts, and sacrebleu is not installed.
    Source: Gao et al. 2024, section 5.1; Kumar and Byrne 2004, "Minimum Bayes-Risk Decoding".

    >>> select_by_bleu(["a cat sat there", "the cat sat on a mat", "the cat sat on the mat"])
    1
    """
    if not candidates:
        raise ValueError("minimum Bayes risk chooses among texts, got none")
    texts = [text.strip() for text in candidates]
    counts = {text: texts.count(text) for text in dict.fromkeys(texts) if text}
    if len(counts) < 2:
        return texts.index(next(iter(counts), texts[0]))
    bleu = require("sacrebleu.metrics.bleu", extra="eval").BLEU(effective_order=True)  # takes a while to import

    def score(reference: str) -> float:
        likeness = {text: 100.0 if text == reference else _sentence_bleu(bleu, text, reference) for text in counts}
        return sum(likeness[text] * (count - (text == reference)) for text, count in counts.items())

    scores = {text: score(text) for text in counts}
    return texts.index(max(scores, key=lambda text: scores[text]))


def _sentence_bleu(bleu: object, hypothesis: str, reference: str) -> float:
    return bleu.sentence_score(hypothesis, [reference]).score  # pyright: ignore[reportAttributeAccessIssue]
