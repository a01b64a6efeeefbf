"""Continue a prompt with the phrases of your documents, of a corpus or of a list, and see where each comes from.

In seconds, with the model that `train_dynamic_vocab.py` leaves at its smoke settings (it writes phrases, not sense):
    python recipes/generate_with_phrases.py recipes/settings/generate_with_phrases/smoke.yaml --html page.html
With any model that `train_dynamic_vocab.py` left:
    python recipes/generate_with_phrases.py --model MODEL --prompt "The ship was" --documents ship.txt navy.txt
    python recipes/generate_with_phrases.py --model MODEL --prompt "The ship was" --phrases terms.txt --html out.html

It prints the text with its phrases marked, a line of statistics and the source of each phrase; --html writes the same
as a page. Documents whose subject is the prompt's give the phrases that a model is most likely to use.
"""

import lab.start  # noqa: F401

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from accelerate import PartialState
from transformers import AutoTokenizer, set_seed

from hf_targets import (
    DynamicVocabForCausalLM,
    PhraseVocabulary,
    TokenNgrams,
    WordNgrams,
    documents_of,
    load_corpus,
    phrase_page,
)
from hf_targets.backbones.inputs import check_tokenizer
from hf_targets.backbones.positions import position_limit
from hf_targets.data.prompts import encode_prompt, takes_turns
from hf_targets.phrases.highlighting import GeneratedText, list_sources, mark_in_terminal
from lab.card import command_line
from lab.continuations import document_retriever
from lab.settings import parse_settings

WITHOUT_PHRASES = (
    "No phrase was used: at each step the model gave other tokens more probability. A --phrase_bias of 2 or more gives "
    "them more, and sampling (--do_sample true) also takes others. Else give documents about the subject of the "
    "prompt, or train the model longer."
)


@dataclass
class Setup:
    """What is continued, with which phrases."""

    model: str = field(metadata={"help": "Name or folder of a model with a dynamic vocabulary."})
    prompt: str = field(metadata={"help": "What the text begins with."})
    documents: list[str] = field(default_factory=list, metadata={"help": "Text files whose spans are phrases."})
    dataset: str | None = field(
        default=None,
        metadata={"help": "Corpus, file, folder, or name on the Hub: its training text has documents too."},
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    num_documents: int = field(default=8, metadata={"help": "Documents of the corpus, the nearest to the prompt."})
    document_words: int = field(default=100, metadata={"help": "Words of a document of the corpus, about."})
    encoder: list[str] = field(
        default_factory=list, metadata={"help": "A sentence encoder, or DPR's two, context first. Empty: TF-IDF."}
    )
    phrases: str | None = field(default=None, metadata={"help": "A text file with a phrase a line."})
    units: Literal["words", "tokens"] = field(
        default="words", metadata={"help": '"words": 2 to 5, trimmed, of one sentence; "tokens": 2 to 8.'}
    )
    new_tokens: int | None = field(
        default=None,
        metadata={"help": "Tokens to generate; None: 128, or fewer if the model has no position for them."},
    )
    chat: bool | None = field(
        default=None,
        metadata={"help": "The prompt is a message to answer, by the chat template. None: where there is one."},
    )
    do_sample: bool | None = field(
        default=None, metadata={"help": "Sampling or greedy decoding. None: as the model's generation configuration."}
    )
    top_p: float | None = field(
        default=None, metadata={"help": "The nucleus, of tokens and phrases together. None: the model's."}
    )
    no_repeat_ngram_size: int | None = field(default=None, metadata={"help": "Block repeated n-grams of tokens."})
    phrase_bias: float | None = field(
        default=None, metadata={"help": "Added to the logit of every phrase: more, or fewer. None: the model's, or 0."}
    )
    phrase_length_correction: float | None = field(
        default=None, metadata={"help": "Added for each token of a phrase after its first. None: the model's, or 0."}
    )
    html: str | None = field(default=None, metadata={"help": "Write a page with marked phrases to this file."})
    seed: int = field(default=0, metadata={"help": "Of sampling."})

    def __post_init__(self) -> None:
        if not self.documents and self.dataset is None and self.phrases is None:
            raise ValueError("phrases come from --documents, --dataset or --phrases; give one of them or several")


def find_documents(setup: Setup) -> dict[str, str]:
    """Return the texts of the files, and those of the corpus that are nearest to the prompt, by name."""
    documents = {path: Path(path).read_text(encoding="utf-8-sig") for path in setup.documents}
    if setup.dataset is None:
        return documents
    corpus = load_corpus(setup.dataset, config_name=setup.dataset_config)
    parts = documents_of(corpus["train"]["text"], setup.document_words)
    [nearest] = document_retriever(parts, setup.encoder).retrieve([setup.prompt], setup.num_documents)
    return documents | {f"{Path(setup.dataset).name}, part {part}": parts[part] for part, _ in nearest}


def main(setup: Setup) -> None:
    """Generate, print the text, its statistics and its sources, and write the page."""
    lines = [] if setup.phrases is None else Path(setup.phrases).read_text(encoding="utf-8-sig").splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    documents = find_documents(setup)
    model: Any = DynamicVocabForCausalLM.from_pretrained(setup.model).eval().to(PartialState().device)
    tokenizer = AutoTokenizer.from_pretrained(setup.model)
    check_tokenizer(model, tokenizer)
    vocabulary = PhraseVocabulary(tokenizer, vocab_size=model.get_output_embeddings().weight.shape[0])
    words = WordNgrams(max_tokens=8, trimmed=True)
    vocabulary.add_documents(documents, words if setup.units == "words" else TokenNgrams())
    vocabulary.add(lines, single_tokens="skip")

    set_seed(setup.seed)
    chats = takes_turns(tokenizer, setup.chat)
    prompt = [{"role": "user", "content": setup.prompt}] if chats else setup.prompt
    inputs: Any = encode_prompt(tokenizer, prompt).to(model.device)
    prompt_length = inputs["input_ids"].shape[1]
    room = (position_limit(model.backbone) or 2**20) - prompt_length + 1  # the last token takes no position
    output = model.generate(
        **inputs,
        phrases=vocabulary,
        max_new_static_tokens=setup.new_tokens or max(1, min(128, room)),
        no_repeat_ngram_size=setup.no_repeat_ngram_size,
        phrase_bias=setup.phrase_bias,
        phrase_length_correction=setup.phrase_length_correction,
        **({} if setup.do_sample is None else {"do_sample": setup.do_sample}),
        **({} if setup.top_p is None else {"top_p": setup.top_p, "top_k": 0}),
    )
    written = GeneratedText.of(output[0].tolist(), prompt_length, vocabulary)
    colour, begin = sys.stdout.isatty(), f"{setup.prompt}\n\n" if chats else written.prompt
    print(f"{begin}{mark_in_terminal(written.text, written.spans, colour=colour)}\n")
    print(f"({'Bold and blue' if colour else 'In brackets'}: phrases, each generated in one step.)")
    print(f"{written.statistics}\n{list_sources(written.spans) or WITHOUT_PHRASES}")
    if setup.html is None:
        return print("Next: --html FILE writes a page on which each phrase leads to its source.")
    given = {"documents": documents, "statistics": written.statistics, "footer": command_line()}
    Path(setup.html).write_text(phrase_page(begin, written.text, written.spans, **given), encoding="utf-8")
    print(f"Page: {setup.html}")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
