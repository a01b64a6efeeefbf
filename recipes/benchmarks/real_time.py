"""Texts whose phrases arrive while they are written, against texts whose phrases are all there: the paper's table 12.

    python recipes/benchmarks/real_time.py recipes/settings/benchmarks/real_time/measured.yaml

Rows: the first share of the phrases alone; the same share, and 5% more every 10 tokens, encoded within the steps; and
all phrases. The phrases that a text begins with are encoded before its time is taken, as in the paper. Measured:
recipes/phrases.md; in the paper, 1.31 s against .99 s with all phrases.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import fmean
from typing import Any

from transformers import AutoTokenizer, set_seed

from hf_targets import PhraseSchedule, PhraseVocabulary, continue_prefixes, measure_continuations
from hf_targets.evaluation.continuations import Continuations
from lab.continuations import ContinuationSettings, load_model
from lab.results import shareable, write_json
from lab.settings import parse_settings
from lab.tables import differences_table, results_table

SHOWN = ("mauve", "diversity", "latency", "latency_median", "latency_p95", "generated_ppl", "steps", "phrase_share")


@dataclass
class Setup(ContinuationSettings):
    """What is measured."""

    model: str = field(default="", metadata={"help": "A model with phrases; {seed} is each of the seeds."})
    judge: str = field(default="", metadata={"help": "Model that scores the texts."})
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Of models and of sampling."})
    initial: float = field(default=0.7, metadata={"help": "Share of the phrases that a text begins with."})
    added: float = field(default=0.05, metadata={"help": "Share that arrives each time."})
    every: int = field(default=10, metadata={"help": "Tokens between two arrivals."})
    output: str | None = field(default=None, metadata={"help": "A JSON file for figures."})


def write(model: Any, prefix: Any, vocabulary: PhraseVocabulary, schedule: PhraseSchedule, **how: Any) -> Continuations:
    """Let a model that has encoded nothing continue a prefix, with phrases that arrive by a schedule."""
    model = copy.deepcopy(model)  # embeddings that it has kept are not copied

    def prepare(_: Any, new_tokens: int) -> tuple[dict[str, Any], Sequence[Any]]:
        model.phrase_table(vocabulary, [schedule(0, vocabulary.num_ids)])
        given = {"phrases": vocabulary, "phrase_schedule": schedule, "max_new_static_tokens": new_tokens}
        return given, [lambda id_: vocabulary.expand([id_])]

    return continue_prefixes(model, [prefix], prepare=prepare, **how)


def main(setup: Setup) -> None:
    """Write all texts, the rows of each prefix one after the other, and print the table."""
    tokenizer = AutoTokenizer.from_pretrained(setup.model.replace("{seed}", str(setup.seeds[0])))
    texts = setup.load()
    prefixes = setup.prefixes(texts, tokenizer)
    phrases_of = setup.phrases_of_documents(texts["train"]["text"], tokenizer)
    given: dict[str, Any] = {"judge": load_model(setup.judge), "words": setup.words()}
    if (name := setup.feature_model) is not None:
        given |= {"feature_model": load_model(name), "feature_tokenizer": AutoTokenizer.from_pretrained(name)}
    share = f"{setup.initial:.0%}"
    schedules = {
        share: PhraseSchedule(setup.initial, 0.0, setup.every),
        f"{share} + real time": PhraseSchedule(setup.initial, setup.added, setup.every),
        "100%": PhraseSchedule(1.0, 0.0, setup.every),
    }
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in schedules}
    how = {"new_tokens": setup.new_tokens, **setup.writing(tokenizer)}
    for seed in setup.seeds:
        model: Any = load_model(setup.model.replace("{seed}", str(seed)), dtype=setup.dtype)
        written = {name: Continuations(*([] for _ in fields(Continuations))) for name in schedules}
        for number, prefix in enumerate([prefixes[0], *prefixes]):  # the first one warms up
            vocabulary = phrases_of(prefix.tokens, model.get_output_embeddings().weight.shape[0])
            for name, schedule in schedules.items():
                set_seed(seed)
                one = write(model, prefix, vocabulary, schedule, **how)
                for key, values in asdict(one).items() if number else ():
                    getattr(written[name], key).extend(values)
        for name, continued in written.items():
            columns = measure_continuations(continued, prefixes, tokenizer, **given)
            figures[name].append({key: columns[key] for key in SHOWN if key in columns})
    print(f"\n{results_table(figures)}\n\nAgainst the first:\n\n{differences_table(figures)}")
    first, fed, whole = figures.values()
    for name, reference in (("the first share alone", first), ("all phrases", whole)):
        ratios = [late["latency"] / one["latency"] for late, one in zip(fed, reference, strict=True)]
        print(f"\nReal time takes {fmean(ratios):.2f} times as long as {name}.")
    if setup.output is not None:
        write_json(Path(setup.output), {"settings": shareable(asdict(setup)), "figures": figures})


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
