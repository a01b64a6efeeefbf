"""Continue a prompt with the phrases of your documents, or of a list, and see which they were and where they come from.

    python recipes/generate_with_phrases.py --model MODEL --prompt "The ship was" --documents ship.txt navy.txt
    python recipes/generate_with_phrases.py --model MODEL --prompt "The ship was" --phrases terms.txt --html out.html

MODEL is one that `train_dynamic_vocab.py` left. Phrases are marked in the terminal and, with --html, in a page of its
own with the place of each in its document.
"""

import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, set_seed

from hf_targets import DynamicVocabForCausalLM, PhraseVocabulary, TokenNgrams, WordNgrams, mark_in_terminal, phrase_page
from hf_targets.training.settings import parse


@dataclass
class Setup:
    """What is continued, with which phrases."""

    model: str = field(metadata={"help": "Name or folder of a model with a dynamic vocabulary."})
    prompt: str = field(metadata={"help": "What the text begins with."})
    documents: list[str] = field(default_factory=list, metadata={"help": "Text files whose spans are phrases."})
    phrases: str | None = field(default=None, metadata={"help": "A text file with a phrase a line."})
    units: str = field(default="words", metadata={"help": '"words": 2 to 5 of them; "tokens": 2 to 8.'})
    new_tokens: int = field(default=128, metadata={"help": "Static tokens to generate."})
    do_sample: bool = field(default=False, metadata={"help": "Nucleus sampling in place of greedy decoding."})
    top_p: float = field(default=0.95, metadata={"help": "The nucleus."})
    no_repeat_ngram_size: int | None = field(default=None, metadata={"help": "Block repeated n-grams of tokens."})
    html: str | None = field(default=None, metadata={"help": "Write a page with marked phrases to this file."})
    seed: int = field(default=0, metadata={"help": "Of sampling."})

    def __post_init__(self) -> None:
        if not self.documents and self.phrases is None:
            raise ValueError("phrases come from --documents or from --phrases; give one of them, or both")
        if self.units not in ("words", "tokens"):
            raise ValueError(f'units must be "words" or "tokens", got {self.units!r}')


def main() -> None:
    """Generate, print the text, and write the page."""
    (setup,) = parse(Setup)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    tokenizer = AutoTokenizer.from_pretrained(setup.model)
    model: Any = DynamicVocabForCausalLM.from_pretrained(setup.model)
    model.eval().to(device)
    documents = {path: Path(path).read_text(encoding="utf-8") for path in setup.documents}
    vocabulary = PhraseVocabulary(tokenizer, vocab_size=model.get_output_embeddings().weight.shape[0])
    if documents:
        vocabulary.add_documents(documents, WordNgrams(max_tokens=8) if setup.units == "words" else TokenNgrams())
    if setup.phrases is not None:
        lines = Path(setup.phrases).read_text(encoding="utf-8").splitlines()
        vocabulary.add([line for line in lines if line.strip()], single_tokens="skip")

    set_seed(setup.seed)
    inputs = tokenizer(setup.prompt, return_tensors="pt").to(device)
    sampling = {"top_p": setup.top_p, "top_k": 0} if setup.do_sample else {}
    output = model.generate(
        **inputs,
        phrases=vocabulary,
        max_new_static_tokens=setup.new_tokens,
        do_sample=setup.do_sample,
        no_repeat_ngram_size=setup.no_repeat_ngram_size,
        **sampling,
    )
    ids, length = output[0].tolist(), inputs["input_ids"].shape[1]
    prompt = vocabulary.decode(ids[:length], skip_special_tokens=True)
    # decoded as a whole: some tokenizers drop the space before a text's first word
    text = vocabulary.decode(ids, skip_special_tokens=True)[len(prompt) :]
    shift, new = -len(prompt), ids[length:]
    spans = [
        replace(span, start=span.start + shift, end=span.end + shift)
        for span in vocabulary.spans(ids, skip_special_tokens=True)
    ]
    print(f"{prompt}{mark_in_terminal(text, spans)}\n")
    num_tokens = len(vocabulary.expand(new))
    print(f"{len(vocabulary)} phrases at hand, {len(spans)} used; {len(new)} steps for {num_tokens} tokens")
    if setup.html is not None:
        page = phrase_page(prompt, text, spans, documents, footer=shlex.join(["python", *sys.argv]))
        Path(setup.html).write_text(page, encoding="utf-8")
        print(f"Page: {setup.html}")


if __name__ == "__main__":
    main()
