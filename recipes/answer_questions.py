"""Let a trained model answer questions about documents: plainly, with drafts looked up in them, with their phrases.

    make models demo                                      # or, with documents and questions of your own:
    python recipes/answer_questions.py recipes/settings/answer_questions/cpu.yaml \
        --documents FOLDER --questions "What is ...?" "How ...?"

Passages of the documents (text files of a folder; by default the reference of the Python language) go into a collection
on disk, with vectors of all-MiniLM-L6-v2. SmolLM2-135M-Instruct reads the two passages nearest to each question and
answers three times, through its chat template and greedily, once plainly:
    with drafts     tokens that follow the same words in the passages are drafted: the same text in fewer passes
    with phrases    phrases of the passages are tokens too, and each leads to its place in its passage
It prints the answers, and writes a page of them into `output_dir`. Nothing is trained.
"""

import lab.start  # noqa: F401

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteriaList, StopStringCriteria

from hf_targets import DocumentCollection, DynamicVocabForCausalLM, PhraseVocabulary, WordNgrams, draft
from hf_targets.extras import require
from hf_targets.phrases.cited_answers import first_line
from hf_targets.phrases.decoding.token_scores import ScoredByTokens
from hf_targets.phrases.highlighting import GeneratedText
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan
from lab.answer_page import PageAnswer, answer_in_terminal, answer_page
from lab.passages import encode_question, passages_of, read_texts
from lab.settings import parse_settings
from lab.speed import row_passes

MINER = WordNgrams(max_tokens=8, trimmed=True)
COLUMNS = ["answered", "passes", "seconds", "text"]


class Answer(NamedTuple):
    """A text with its phrases, and what it took; a pass reads the tokens of one step, of a draft or of a phrase."""

    text: str
    spans: tuple[PhraseSpan, ...]
    passes: int
    seconds: float
    statistics: str


@dataclass
class Setup:
    """Which documents, questions and models."""

    questions: list[str] = field(metadata={"help": "About the documents."})
    model: str = field(default="models/smollm2-135m", metadata={"help": "A causal model with a chat template."})
    encoder: str = field(default="models/minilm", metadata={"help": "Of sentence-transformers."})
    documents: str | None = field(default=None, metadata={"help": "Folder of text files. None: Python's reference."})
    num_passages: int = field(default=2, metadata={"help": "Read before an answer, the nearest to its question."})
    passage_words: int = field(default=50, metadata={"help": "At which a passage ends, after a paragraph."})
    new_tokens: int = field(default=80, metadata={"help": "Of an answer, at most."})
    output_dir: str = field(default="runs/answer_questions", metadata={"help": "Of the collection and of the page."})


def open_collection(setup: Setup, passages: dict[str, str]) -> DocumentCollection:
    """Return a collection of the passages; those that it had from an earlier run are not encoded again."""
    folder = Path(setup.output_dir, "collection")
    encoder = require("sentence_transformers", extra="retrieval").SentenceTransformer(setup.encoder, device="cpu")
    collection = (DocumentCollection.open if any(folder.glob("*")) else DocumentCollection.create)(folder, encoder)
    collection.delete(set(collection) - set(passages))
    collection.add(passages, replace=True)
    return collection


@torch.no_grad()
def write(model: Any, inputs: Any, vocabulary: PhraseVocabulary, **given: Any) -> Answer:
    """Return what a model writes after a prompt, up to its first line break, and what it took."""
    begin, length = time.perf_counter(), inputs["input_ids"].shape[1]
    with row_passes(model) as passes:
        ending = StoppingCriteriaList([StopStringCriteria(vocabulary.tokenizer, ["\n"])])
        ids = model.generate(**inputs, do_sample=False, stopping_criteria=ending, **given)[0].tolist()
    seconds, written = time.perf_counter() - begin, GeneratedText.of(ids, length, vocabulary)
    return Answer(*first_line(written.text, written.spans), len(passes), seconds, written.statistics)


def main(setup: Setup) -> None:
    """Answer the questions, print the answers, and write the page."""
    for path in (setup.model, setup.encoder):
        if path.startswith("models/") and not Path(path).is_dir():
            raise SystemExit(f"{path} is not there; fetch it with `make models`")
    passages = passages_of(read_texts(setup.documents), setup.passage_words)
    if not passages:
        raise SystemExit(f"{setup.documents} must hold .txt, .md or .rst files with prose; give another folder")
    tokenizer, collection = AutoTokenizer.from_pretrained(setup.model), open_collection(setup, passages)
    model: Any = AutoModelForCausalLM.from_pretrained(setup.model, dtype=torch.float32).eval()
    with_phrases, pages = DynamicVocabForCausalLM.from_base(model, phrase_encoder_kind="mean"), []
    none = PhraseVocabulary(tokenizer, vocab_size=model.get_output_embeddings().weight.shape[0])
    for question in setup.questions:
        [nearest] = collection.retrieve([question], setup.num_passages)
        documents = {str(n): {"title": name, "text": passages[name]} for n, (name, _) in enumerate(nearest, start=1)}
        found = {number: document["text"] for number, document in documents.items()}
        inputs = encode_question(tokenizer, question, found)
        drafts = draft(documents=found, tokenizer=tokenizer)
        write(model, inputs, none, max_new_tokens=2, custom_generate=drafts)  # what happens once is not timed
        phrases = PhraseVocabulary.from_documents(found, tokenizer, MINER, vocab_size=none.vocab_size)
        phrases.embeddings_folder = collection.phrase_folder
        scored = {"phrases": phrases, "logits_processor": [ScoredByTokens(model, phrases)]}
        answers = {
            "plainly": write(model, inputs, none, max_new_tokens=setup.new_tokens),
            "with drafts": write(model, inputs, none, max_new_tokens=setup.new_tokens, custom_generate=drafts),
            "with phrases": write(with_phrases, inputs, phrases, max_new_static_tokens=setup.new_tokens, **scored),
        }
        plain, last, table = answers["plainly"], answers["with phrases"], [COLUMNS]
        for way, answer in answers.items():
            same = "" if answer is plain else "the same" if answer.text == plain.text else "another one"
            table.append([way, str(answer.passes), f"{answer.seconds:.1f}", same])
        note = last.statistics + ("" if plain.text == last.text else f". Plainly: {plain.text}")
        pages.append(PageAnswer(question, last.text, last.spans, documents, note, table))
        print(answer_in_terminal(pages[-1], colour=sys.stdout.isatty()), note, sep="\n")
        print("\n".join("  ".join(f"{cell:<12}" for cell in row) for row in table), end="\n\n", flush=True)
    page = Path(setup.output_dir, "answers.html")
    page.write_text(answer_page(pages, "Questions about documents, answered in three ways"), encoding="utf-8")
    print(f'Page: {page}. Next: ask about texts of yours, with --documents FOLDER --questions "What is ...?"')


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
