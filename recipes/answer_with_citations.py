"""Let models answer questions from documents, each phrase with the marker of its document, and print table 7.

In seconds, with the model that `train_dynamic_vocab.py` leaves at its smoke settings (it writes no sense):
    python recipes/answer_with_citations.py recipes/settings/answer_with_citations/smoke.yaml --html page.html
On questions with documents in ALCE's format, with a model that has positions for a prompt of some hundred words:
    python recipes/answer_with_citations.py recipes/settings/answer_with_citations/cpu.yaml --questions FILE --model M

Rows: a plain model, then the model with phrases that have markers (n-grams, constituents), without phrases (none), and
with phrases that get their markers afterwards (provenance). `{seed}` in a model's name stands for each of `--seeds`.
Tables have means and standard errors over seeds. The JSON file is written after each row.
"""

import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

from transformers import AutoConfig, AutoTokenizer, set_seed

from hf_targets import (
    ChunkPhrases,
    ConstituencyPhrases,
    DynamicVocabConfig,
    ExtractiveReader,
    LexicalEntailment,
    ModelEntailment,
    PageAnswer,
    QuestionSettings,
    SeedSettings,
    TokenNgrams,
    WordNgrams,
    answer_page,
    answer_with_phrases,
    columns_of_answers,
    figures_of_answer,
    format_columns,
    load_model,
    measure_cited_answers,
    parse_settings,
    remembered,
    shown_command,
    write_json,
    written_together,
)
from hf_targets.training.outputs import check_output_files

ROWS = ("n-grams", "constituents", "none", "provenance")


@dataclass
class Setup(SeedSettings, QuestionSettings):
    """Which models answer which questions, and who judges the answers."""

    model: str = field(default="", metadata={"help": "Model with a dynamic vocabulary, with {seed} or without."})
    plain: str | None = field(default=None, metadata={"help": "Model of the row plain. None: no such row."})
    rows: list[str] = field(default_factory=lambda: list(ROWS), metadata={"help": f"Of {', '.join(ROWS)}."})
    units: Literal["tokens", "words"] = field(default="tokens", metadata={"help": "What n-grams are windows of."})
    max_tokens: int = field(default=8, metadata={"help": "Longest phrase."})
    parser: str | None = field(
        default=None, metadata={"help": "Folder of a stanza pipeline, for constituents. None: chunks of tags."}
    )
    do_sample: bool = field(default=True, metadata={"help": "Nucleus sampling in place of greedy decoding."})
    temperature: float = field(default=1.0, metadata={"help": "Of sampling."})
    top_p: float = field(default=0.95, metadata={"help": "The nucleus, of tokens and phrases together."})
    entailment: str = field(
        default="lexical", metadata={"help": 'Model that judges citations, or "lexical": by shared words.'}
    )
    judge_dtype: str = field(default="auto", metadata={"help": "Of the model that judges citations."})
    reader: str | None = field(default=None, metadata={"help": "Model that reads short answers. None: no QA columns."})
    dtype: str = field(default="auto", metadata={"help": "Of the models that answer, such as bfloat16."})
    output: str | None = field(default=None, metadata={"help": "A JSON file for answers and figures."})
    html: str | None = field(default=None, metadata={"help": "A page of the first seed's answers."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model:
            raise ValueError("model must name a model with a dynamic vocabulary, as train_dynamic_vocab.py leaves it")
        if not self.rows or not set(self.rows) <= set(ROWS) or len(set(self.rows)) < len(self.rows):
            raise ValueError(f"rows must be of {', '.join(ROWS)}, each once, got {', '.join(self.rows) or 'none'}")
        check_output_files(output=self.output, html=self.html)

    def miners(self) -> dict[str, Any]:
        """Return what finds the phrases of each row that has some."""
        longest, folder = self.max_tokens, self.parser
        windows = WordNgrams(max_tokens=longest) if self.units == "words" else TokenNgrams(2, longest)
        chunks = ChunkPhrases(max_tokens=longest) if folder is None else ConstituencyPhrases(folder, max_tokens=longest)
        return {"n-grams": windows, "constituents": chunks, "provenance": windows}


def main() -> None:
    """Answer the questions in each row with every seed, print the table and write the page."""
    (setup,) = parse_settings(Setup)
    miners, asked = setup.miners(), setup.ask(for_reader=setup.reader is not None)
    lexical = setup.entailment == "lexical"
    config = AutoConfig.from_pretrained(first := setup.model.replace("{seed}", str(setup.seeds[0])))
    if not isinstance(config, DynamicVocabConfig):
        raise ValueError(f"model must have a dynamic vocabulary, and {first!r} is a {config.model_type} without")
    loaded = None if lexical else ModelEntailment.from_pretrained(setup.entailment, dtype=setup.judge_dtype)
    entailment = remembered(loaded or LexicalEntailment())
    reader = None if setup.reader is None else ExtractiveReader.from_pretrained(setup.reader)
    print(f"Sentences: {asked.splitter}. Constituents: {'chunks of tags' if setup.parser is None else 'parsed'}.")
    judge = "shared words, which is no inference" if lexical else setup.entailment
    print(f"Citations are judged by {judge}.")
    sampling = {"temperature": setup.temperature, "top_p": setup.top_p, "top_k": 0} if setup.do_sample else {}
    figures, answers, shown = defaultdict(list), defaultdict(list), []
    for seed, row in product(setup.seeds, ["plain"] * (setup.plain is not None) + setup.rows):
        given = str(setup.plain if row == "plain" else setup.model)
        if seed != setup.seeds[0] and "{seed}" not in given and not setup.do_sample:
            continue  # the same model writes the same answers
        model: Any = load_model(name := given.replace("{seed}", str(seed)), dtype=setup.dtype)
        tokenizer = AutoTokenizer.from_pretrained(name)
        prompts = asked.prompts(model.backbone if row != "plain" else model, tokenizer)
        set_seed(seed)
        written = [
            answer_with_phrases(
                model,
                tokenizer,
                prompt,
                [document["text"] for document in documents],
                miners.get(row),
                marking="afterwards" if row == "provenance" else "phrases",
                new_tokens=setup.new_tokens,
                do_sample=setup.do_sample,
                **sampling,
            )
            for prompt, documents in zip(prompts, asked.documents, strict=True)
        ]
        texts, kind = [answer.text for answer in written], "lexical" if lexical else "citation"
        scored: Any = {"reader": reader, "split": asked.split, "judged_by": kind}
        columns = measure_cited_answers(texts, asked.items, asked.documents, entailment, **scored)
        figures[row].append(columns | columns_of_answers(written))
        answers[row].append([asdict(answer) for answer in written])
        print(f"{row}, seed {seed}: {figures[row][-1]['seconds']:.2f} s an answer", flush=True)
        if setup.output is not None:
            write_json(Path(setup.output), {"settings": asdict(setup), "figures": figures, "answers": answers})
        for item, documents, answer in zip(asked.items, asked.documents, written, strict=True):
            if seed == setup.seeds[0]:
                numbered = {str(number): document for number, document in enumerate(documents, start=1)}
                note = figures_of_answer(answer, documents, entailment, asked.split, judged_by=judge)
                shown.append(PageAnswer(f"{item['question']} ({row})", answer.text, answer.spans, numbered, note))
    print(f"\n{format_columns(figures)}")
    if setup.html is not None:
        with written_together(Path(setup.html).parent, Path(setup.html).name) as folder:
            (folder / Path(setup.html).name).write_text(answer_page(shown, footer=shown_command(sys.argv)), "utf-8")


if __name__ == "__main__":
    main()
