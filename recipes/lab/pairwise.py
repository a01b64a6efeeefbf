"""Which of two continuations is preferred: by a causal language model, or by annotators on a page (table 2)."""

import csv
import hashlib
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from math import exp
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.figures.page_style import page
from lab.continuations import load_model
from lab.judges import log_odds
from lab.results import write_json
from lab.tables import markdown_table

ASPECTS = ("fluency", "coherence", "informativeness", "grammar")
QUESTION = """Two writers went on with the same beginning of a text. Judge {aspects}. The order \
in which the two stand here must not matter.

Beginning: {prefix}

Continuation 1: {first}

Continuation 2: {second}

Which continuation is better, 1 or 2? Answer with the number alone.
Answer:"""


@dataclass(frozen=True)
class Preferences:
    """The shares of pairs in which the first text is preferred, neither is, or the second is; they sum to 1."""

    better: float
    none: float
    worse: float

    @classmethod
    def of(cls, margins: Sequence[float], tie: float = 0.0) -> "Preferences":
        """Return the shares of margins of the first text over the second above `tie`, up to it, and below `-tie`."""
        better, worse = sum(margin > tie for margin in margins), sum(margin < -tie for margin in margins)
        return cls(better / len(margins), 1 - (better + worse) / len(margins), worse / len(margins))


class PairwiseJudge:
    """A causal language model that compares texts after the same prefix.

    It reads a question with both texts, and then each answer: what counts is the probability of "1" against that of
    "2". It is asked twice, with the texts in either order, and the mean counts, as models favour a place. With a chat
    template the question is a user's message.

    Args:
        model: Preferably one that follows instructions; small ones prefer by chance.
        aspect: One of `ASPECTS`; None: all four together.
    Source: Liu et al., "Generation with Dynamic Vocabulary", appendix G, tables 2 and 14; Wang et al. 2023 on orders.
    Departs: the paper asks GPT-4 for an answer in words, and does not tell its template in text. Probabilities can be
        had of any open model, and show how sure it is.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, aspect: str | None = None) -> None:
        together = f"{', '.join(ASPECTS[:-1])} and {ASPECTS[-1]} together"
        self._aspects = together if aspect is None else f"{aspect} alone"
        self._model, self._tokenizer = model.eval(), tokenizer

    def margins(self, prefixes: Sequence[str], firsts: Sequence[str], seconds: Sequence[str]) -> list[float]:
        """Return how much the first text of each pair is preferred, in [-1, 1]; negative if the second is.

        It is the mean of both orders of the probability of its answer, less that of the other: 0 for equal texts.
        """
        ahead = self._first_ahead(prefixes, firsts, seconds)
        behind = self._first_ahead(prefixes, seconds, firsts)
        return [(one - other) / 2 for one, other in zip(ahead, behind, strict=True)]

    def compare_with_first(
        self, prefixes: Sequence[str], texts: Mapping[str, Sequence[Sequence[str]]]
    ) -> dict[str, Preferences]:
        """Return the shares of each other model's texts that are better, or worse, than the first model's.

        The texts are by model and seed, one for each prefix; where the first model has fewer seeds, it begins again.
        """
        first, *others = texts
        compared = {}
        for model in others:
            seeds = zip(texts[model], cycle(texts[first]), strict=False)
            pairs = [pair for ours, theirs in seeds for pair in zip(prefixes, ours, theirs, strict=True)]
            compared[model] = Preferences.of(self.margins(*zip(*pairs, strict=True)), tie=0.02)
        return compared

    def _first_ahead(self, prefixes: Sequence[str], firsts: Sequence[str], seconds: Sequence[str]) -> list[float]:
        """Return the probability of the answer 1 less that of the answer 2, of these two, for each question."""
        questions = [
            QUESTION.format(aspects=self._aspects, prefix=prefix, first=first, second=second)
            for prefix, first, second in zip(prefixes, firsts, seconds, strict=True)
        ]
        ahead = log_odds(self._model, self._tokenizer, questions, ("1", "2"))
        return [2 / (1 + exp(-difference)) - 1 for difference in ahead]  # p1 - p2 where p1 + p2 = 1


def preferences_by_aspect(
    judge: str, prompts: Sequence[str], texts: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, Preferences]:
    """Return how often the model `judge` prefers a model's texts to the first one's, overall and by aspect."""
    model, words = load_model(judge), AutoTokenizer.from_pretrained(judge)
    return {
        f"{name}, {aspect or 'overall'}": one
        for aspect in (None, *ASPECTS)
        for name, one in PairwiseJudge(model, words, aspect).compare_with_first(prompts, texts).items()
    }


def format_preferences(rows: Mapping[str, Preferences]) -> str:
    """Return shares as a Markdown table like table 14, with a row for each model that was compared."""
    cells = [[name, f"{row.better:.2f}", f"{row.none:.2f}", f"{row.worse:.2f}"] for name, row in rows.items()]
    return markdown_table(["model", "better", "no preference", "worse"], cells)


QUESTIONS = ("overall", *ASPECTS)
KEY_NAME, PAGE_NAME = "key.json", "pairs.html"


def write_pairs(
    folder: str | Path, prefixes: Sequence[str], texts: Mapping[str, Sequence[str]], *, seed: int = 0
) -> None:
    """Write `pairs.html`, on which two models' texts stand in random places, and `key.json`, which names the places.

    The last model of the texts is compared with each other one, on 100 random prefixes.

    Source: Liu et al., "Generation with Dynamic Vocabulary", section 3.2, human evaluation.
    """
    draw, pairs, key = random.Random(seed), [], {}
    *others, ours = texts
    for other in others:
        for number in draw.sample(range(len(prefixes)), min(100, len(prefixes))):
            name, first = f"p{len(key) + 1}", draw.choice([ours, other])
            second = other if first == ours else ours
            key[name] = {"model": ours, "other": other, "first": first}
            shown = {"1": texts[first][number], "2": texts[second][number]}
            pairs.append({"pair": name, "prefix": prefixes[number], **shown})
    draw.shuffle(pairs)
    digest = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:8]  # a browser keeps answers by place
    body = Path(__file__).with_name("pairs.html").read_text(encoding="utf-8")
    for name, value in {"PLACE": f"{ours} {seed} {digest}", "QUESTIONS": QUESTIONS, "PAIRS": pairs}.items():
        body = body.replace(name, json.dumps(value).replace("<", "\\u003c"), 1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_json(Path(folder) / KEY_NAME, key)
    (Path(folder) / PAGE_NAME).write_text(page("Which text is better?", body), encoding="utf-8")


def shares(folder: str | Path) -> dict[str, dict[str, Preferences]]:
    """Return by comparison and question the shares of pairs in which the last model's text is better, or worse.

    The answers are the CSV files in the folder, one of each annotator. Where annotators differ the majority counts, and
    no preference if there is none: the paper's annotators talk until they agree.
    """
    key = json.loads((Path(folder) / KEY_NAME).read_text(encoding="utf-8"))
    comparisons = {pair: f"{one['model']} against {one['other']}" for pair, one in key.items()}
    ahead: Counter[tuple[str, str, str]] = Counter()
    for file in sorted(Path(folder).glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                pair = row["pair"]
                side = 1 if key[pair]["first"] == key[pair]["model"] else -1
                ahead[comparisons[pair], row["question"], pair] += side * {"1": 1, "none": 0, "2": -1}[row["answer"]]
    if not ahead:
        raise ValueError(f"{folder} has no answers; judge on {PAGE_NAME}, and put the saved CSV files beside it")
    found: dict[str, dict[str, Preferences]] = {}
    for name, question in product(dict.fromkeys(comparisons.values()), QUESTIONS):
        if margins := [value for (*asked, _), value in ahead.items() if asked == [name, question]]:
            found.setdefault(name, {})[question] = Preferences.of(margins)
    return found
