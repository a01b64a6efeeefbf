"""Let a model answer questions from documents, with phrases that carry the markers of the documents they are from.

In seconds, with the model that `train_dynamic_vocab.py` leaves at its smoke settings (it writes no sense):
    python recipes/answer_with_citations.py recipes/settings/answer_with_citations/smoke.yaml
On questions with documents in ALCE's format, with a model that has positions for a prompt of some hundred words:
    python recipes/answer_with_citations.py recipes/settings/answer_with_citations/cpu.yaml --questions FILE --model M

It prints each answer with its phrases marked and their sources. `output_dir` gets the answers, their scores, and a page
that goes question by question. Several ways side by side (table 7): `tables/answer_with_citations.py`.
"""

import lab.start  # noqa: F401

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from hf_targets import ChunkPhrases, ConstituencyPhrases, TokenNgrams, WordNgrams, check_quotes
from hf_targets.phrases.cited_answers import answer_with_phrases
from lab.answer_page import PageAnswer, answer_in_terminal, answer_page
from lab.answer_scores import measure_answers, measure_citations, measure_provenance, measure_quotes, told_answer
from lab.judges import check_judges, load_entailment, load_reader, shares_words
from lab.questions import QuestionSettings
from lab.results import write_json, write_results
from lab.settings import parse_settings

PAIRS = Path(__file__).parent / "settings" / "answer_with_citations" / "entailment_pairs.json"
"""Pairs of a premise and a hypothesis, written by hand, and whether one follows: judges' agreement is told."""


@dataclass
class Setup(QuestionSettings):
    """Which model answers which questions, and who judges the answers."""

    model: str = field(default="", metadata={"help": "Name or folder; {seed} stands for the seed."})
    phrases: Literal["ngrams", "constituents", "none"] = field(default="ngrams", metadata={"help": "Of documents."})
    marking: Literal["phrases", "afterwards", "quotes"] = field(
        default="phrases",
        metadata={
            "help": 'Phrases end with their document\'s marker, or get it afterwards. "quotes": no phrases, the model '
            "is asked to quote with quotation marks and markers."
        },
    )
    units: Literal["words", "tokens"] = field(
        default="words", metadata={"help": 'N-grams: "words", trimmed, of one sentence; "tokens", as in the paper.'}
    )
    max_tokens: int = field(default=8, metadata={"help": "Longest phrase."})
    parser: str | None = field(
        default=None, metadata={"help": "Folder of a stanza pipeline, for constituents. None: chunks of tags."}
    )
    do_sample: bool | None = field(
        default=None, metadata={"help": "Sampling or greedy decoding. None: as the model's generation configuration."}
    )
    temperature: float | None = field(default=None, metadata={"help": "Of sampling. None: the model's."})
    top_p: float | None = field(
        default=None, metadata={"help": "The nucleus, of tokens and phrases together. None: the model's."}
    )
    phrase_bias: float | None = field(
        default=None, metadata={"help": "Added to the logit of every phrase: more, or fewer. None: the model's, or 0."}
    )
    phrase_length_correction: float | None = field(
        default=None, metadata={"help": "Added for each token of a phrase after its first. None: the model's, or 0."}
    )
    dtype: str = field(default="auto", metadata={"help": "Of the model and the judge, such as bfloat16."})
    entailment: str = field(
        default="lexical",
        metadata={"help": "Model that judges citations beside shared words; a causal one is asked. lexical: none."},
    )
    reader: str | None = field(default=None, metadata={"help": "Model that reads short answers. None: no QA columns."})
    seed: int = field(default=0, metadata={"help": "Of sampling."})
    output_dir: str = field(default="runs/answer_with_citations", metadata={"help": "Folder of answers and scores."})

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model names who answers, such as models/smollm2-135m; give it")
        if self.marking == "quotes":
            self.phrases, self.instruction = "none", "quotes"

    @property
    def generation(self) -> dict[str, Any]:
        """What `generate` gets in place of the model's generation configuration."""
        names = ("do_sample", "temperature", "top_p", "phrase_bias", "phrase_length_correction")
        given = {name: getattr(self, name) for name in names}
        if self.top_p is not None:
            given["top_k"] = 0
        return {name: value for name, value in given.items() if value is not None}

    def miner(self) -> Any:
        """Return what finds the phrases of a document; None for none."""
        if self.phrases == "ngrams":
            words = WordNgrams(max_tokens=self.max_tokens, trimmed=True)
            return words if self.units == "words" else TokenNgrams(2, self.max_tokens)
        if self.phrases == "constituents" and self.parser is not None:
            return ConstituencyPhrases(self.parser, max_tokens=self.max_tokens)
        return ChunkPhrases(max_tokens=self.max_tokens) if self.phrases == "constituents" else None


def main(setup: Setup, *, show: bool = False) -> dict[str, float]:
    """Answer the questions, print the answers if they are to be shown, write answers and page, return the scores."""
    check_judges(setup.entailment, setup.reader)
    name, miner = setup.model.replace("{seed}", str(setup.seed)), setup.miner()
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=setup.dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(name)
    asked = setup.ask(tokenizer)
    asked.check_room(getattr(model, "backbone", model), tokenizer, setup.new_tokens)
    marking = "afterwards" if setup.marking == "afterwards" else "phrases"
    given: Any = {"marking": marking, "new_tokens": setup.new_tokens, **setup.generation}
    set_seed(setup.seed)
    answers, pages = [], []
    for item, prompt, documents in zip(asked.items, asked.prompts, asked.documents, strict=True):
        found = [document["text"] for document in documents]
        answers.append(answer := answer_with_phrases(model, tokenizer, prompt, found, miner, **given))
        named = {str(number): document for number, document in enumerate(documents, start=1)}
        pages.append(PageAnswer(item["question"], answer.text, answer.spans, named))
        if show:
            print(f"{answer_in_terminal(pages[-1], colour=sys.stdout.isatty())}\n", flush=True)
    quotes = [
        check_quotes(answer.text, documents, phrases=[(span.start, span.end) for span in answer.spans])
        for answer, documents in zip(answers, asked.documents, strict=True)
    ]
    (folder := Path(setup.output_dir)).mkdir(parents=True, exist_ok=True)
    rows = [asdict(one) | {"quotes": asdict(check)} for one, check in zip(answers, quotes, strict=True)]
    write_json(folder / "answers.json", rows)
    texts, judges = [answer.text for answer in answers], {"lexical": shares_words}
    if setup.entailment != "lexical":
        judges["citation"] = load_entailment(setup.entailment, setup.dtype)
    reader = None if setup.reader is None else load_reader(setup.reader)
    pairs = json.loads(PAIRS.read_text(encoding="utf-8"))
    scores = measure_answers(texts, asked.items, asked.split, reader) | measure_provenance(answers)
    for kind, entails in judges.items():
        scores |= measure_citations(texts, asked.documents, entails, asked.split, kind)
        scores[f"{kind}_agreement"] = 100 * fmean(entails(*pair) == label for *pair, label in pairs)
    scores |= measure_quotes(quotes)
    judged = f"Judged by {setup.entailment}."
    notes = (told_answer(*one, entails, asked.split) for one in zip(answers, asked.documents, strict=True))
    pages = [replace(page, note=f"{note} {judged}") for page, note in zip(pages, notes, strict=True)]
    (folder / "answers.html").write_text(answer_page(pages), encoding="utf-8")
    return scores


if __name__ == "__main__":
    (setup,) = parse_settings(Setup, description=__doc__)
    results = main(setup, show=True)
    write_results(setup.output_dir, results)
    print(f"{json.dumps(results, indent=1)}\nAnswers with their sources: {Path(setup.output_dir, 'answers.html')}")
