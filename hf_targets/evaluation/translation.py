"""How good translations are: sacreBLEU's BLEU and chrF with their signatures, and COMET where it is installed."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hf_targets.extras import require


@dataclass(frozen=True)
class TranslationScores:
    """Scores of a whole test set, each with the signature that says how it was computed; None was not computed."""

    bleu: float | None
    """BLEU of plain text, in [0, 100]: sacreBLEU cuts words itself."""
    bleu_signature: str | None
    bleu_tokenized: float | None
    """BLEU of text that is cut into words already, in [0, 100]. It is no sacreBLEU score: do not compare the two."""
    bleu_tokenized_signature: str | None
    chrf: float
    """chrF2, in [0, 100]."""
    chrf_signature: str
    comet: float | None = None
    """COMET's score, for most of its models in about [0, 1]."""
    comet_model: str | None = None

    @property
    def signature(self) -> str:
        """BLEU's, of plain text or of text that is cut into words."""
        return str(self.bleu_tokenized_signature or self.bleu_signature)

    def columns(self) -> dict[str, float]:
        """Return BLEU, of the kind that was computed, and chrF by name."""
        named = {"bleu": self.bleu, "bleu_tokenized": self.bleu_tokenized, "chrf": self.chrf}
        return {name: value for name, value in named.items() if value is not None}


def translation_scores(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    tokenized: bool = False,
    target_lang: str | None = None,
    comet: str | None = None,
    sources: Sequence[str] | None = None,
) -> TranslationScores:
    """Return BLEU and chrF of translations of a whole test set.

    Args:
        hypotheses: Translations as a reader gets them, without special tokens; one may be empty.
        references: A correct translation of each, or a list of them.
        lowercase: Whether case is ignored.
        tokenized: Whether both are cut into words by spaces already, such as the usual files of IWSLT14. The score is
            then `bleu_tokenized`, and `bleu` is None.
        target_lang: Such as `"zh"` or `"ja"`, whose words sacreBLEU cuts in a way of their own (`"ja"` and `"ko"` need
            more packages). None: as for languages with spaces.
        comet: A model of COMET, such as `"Unbabel/wmt22-comet-da"`. It needs `sources`, and one reference each.
        sources: The texts that were translated.
    Raises:
        ValueError: If there are no hypotheses, a text stands in place of a list, the numbers of texts differ, one has
            no reference, or an option does not apply.
        ImportError: If sacrebleu, or for `comet` its package, is not installed.
    Source: Post 2018 (sacreBLEU), Popović 2015 (chrF), Rei et al. 2020 (COMET).
    """
    lists = references_of(hypotheses, references)
    if (comet is None) != (sources is None):
        raise ValueError("comet and sources are given together or not at all, as only COMET reads sources")
    metric = bleu_metric(lowercase=lowercase, tokenized=tokenized, target_lang=target_lang)
    streams = [[of_one[n] if n < len(of_one) else None for of_one in lists] for n in range(max(map(len, lists)))]

    def score(by: Any) -> tuple[float, str]:
        return by.corpus_score(list(hypotheses), streams).score, str(by.get_signature())

    bleu = score(metric)
    chrf, chrf_signature = score(require("sacrebleu.metrics", extra="eval").CHRF(lowercase=lowercase))
    return TranslationScores(
        *((None, None, *bleu) if tokenized else (*bleu, None, None)),
        chrf=chrf,
        chrf_signature=chrf_signature,
        comet=None if comet is None or sources is None else _comet(comet, sources, hypotheses, lists),
        comet_model=comet,
    )


def bleu_metric(*, lowercase: bool, tokenized: bool, target_lang: str | None, effective_order: bool = False) -> Any:
    """Return sacreBLEU's metric, with the options of `translation_scores`.

    Args:
        effective_order: Whether orders of n-grams without a match are left out, as is usual for single sentences.
    Raises:
        ValueError: If `target_lang` is given for tokenized text.
        ImportError: If sacrebleu is not installed.
    """
    if tokenized and target_lang is not None:
        raise ValueError(f"target_lang chooses how words are cut, and tokenized text is; got {target_lang!r}")
    cut: dict[str, Any] = {"tokenize": "none"} if tokenized else {"trg_lang": target_lang or ""}
    kind = require("sacrebleu.metrics", extra="eval").BLEU
    return kind(lowercase=lowercase, force=tokenized, effective_order=effective_order, **cut)


def references_of(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[Sequence[str]]:
    """Return the references of each hypothesis, one or more.

    Raises:
        ValueError: If there are no hypotheses, a text stands in place of a list, or one has no reference.
    """
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str):
            raise ValueError(f"{name} must be several texts, got the text {texts[:40]!r}; put it in a list")
    if not hypotheses:
        raise ValueError("scores are of one hypothesis or more, got none")
    if len(hypotheses) != len(references):
        raise ValueError(
            f"each hypothesis needs a reference, or a list of them, got {len(hypotheses)} hypotheses and "
            f"{len(references)} references"
        )
    lists = [[each] if isinstance(each, str) else each for each in references]
    if bad := [number for number, texts in enumerate(lists) if not texts or not all(isinstance(t, str) for t in texts)]:
        raise ValueError(f"each hypothesis needs one reference or more, got {lists[bad[0]]!r:.60} for number {bad[0]}")
    if bad := [number for number, text in enumerate(hypotheses) if not isinstance(text, str)]:
        raise ValueError(
            f"hypotheses must be texts, got {hypotheses[bad[0]]!r:.60} at number {bad[0]}; decode ids first"
        )
    return lists


def _comet(model: str, sources: Sequence[str], hypotheses: Sequence[str], lists: list[Sequence[str]]) -> float:
    if isinstance(sources, str) or len(sources) != len(hypotheses):
        raise ValueError(f"each hypothesis needs its source, got {len(hypotheses)} and sources {sources!r:.60}")
    if any(len(texts) != 1 for texts in lists):
        raise ValueError("COMET compares with one reference, got several for a hypothesis; give the first alone")
    if find_spec("comet") is None:
        raise ImportError(
            "COMET's package is not installed; its latest release (unbabel-comet 2.2.7) needs transformers below 5, so "
            "install it into an environment of its own, and run there: comet-score -s SOURCES -t HYPOTHESES "
            "-r REFERENCES"
        )
    package = import_module("comet")
    rows = [
        {"src": source, "mt": hypothesis, "ref": texts[0]}
        for source, hypothesis, texts in zip(sources, hypotheses, lists, strict=True)
    ]
    scorer = package.load_from_checkpoint(package.download_model(model))
    return float(scorer.predict(rows, batch_size=8, gpus=0, progress_bar=False).system_score)
