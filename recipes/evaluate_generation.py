"""Let models continue the same prefixes, with phrases of retrieved documents where they can, and print table 1.

For each prefix of 32 tokens the documents nearest to it are taken from the training text; all their windows of 2 to 8
tokens are its phrases, and 128 tokens are generated, whatever number of steps that takes:
    python recipes/evaluate_generation.py recipes/settings/evaluate_generation/cpu.yaml

A model with a phrase encoder is measured with phrases. `{seed}` in a model's name stands for each of `--seeds`: the
model of that seed samples with that seed. Tables have means and standard errors over seeds, then 95% intervals over
prefixes. As the paper measures, MAUVE on GPT-2 large's features: `.../paper.yaml`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from hf_targets import (
    DocumentRetriever,
    DynamicVocabForCausalLM,
    PairwiseJudge,
    PhraseVocabulary,
    PrefixSettings,
    SeedSettings,
    TokenNgrams,
    WordNgrams,
    continue_prefixes,
    documents_of,
    field_of,
    format_column_differences,
    format_columns,
    format_intervals,
    format_preferences,
    measure_continuations,
    parse_settings,
    with_phrases,
    write_json,
)


@dataclass
class Setup(SeedSettings, PrefixSettings):
    """Which models continue which prefixes."""

    models: list[str] = field(
        default_factory=list,
        metadata={"help": "Names or folders, with {seed} or without; the first one's tokenizer is that of all."},
    )
    dataset: str = field_of(PrefixSettings, "dataset", "wikitext-2", note="Its training text has the documents.")
    num_documents: int = field(default=32, metadata={"help": "Documents retrieved for each prefix."})
    document_words: int = field(default=100, metadata={"help": "Words of a document, about."})
    units: Literal["tokens", "words"] = field(
        default="tokens", metadata={"help": '"tokens": all windows; "words": 2 to 5 whole words.'}
    )
    min_tokens: int = field(default=2, metadata={"help": "Shortest phrase."})
    max_tokens: int = field(default=8, metadata={"help": "Longest phrase."})
    do_sample: bool = field(default=False, metadata={"help": "Nucleus sampling in place of greedy decoding."})
    top_p: float = field(default=0.95, metadata={"help": "The nucleus, of tokens and phrases together."})
    never: list[str] = field(
        default_factory=list, metadata={"help": "Words that no model may write, such as WikiText's <unk>."}
    )
    judge: str | None = field(default=None, metadata={"help": "Model that scores the texts. None: each seed's first."})
    pairwise_judge: str | None = field(
        default=None, metadata={"help": "Model that compares texts with the first model's, in both orders. None: none."}
    )
    feature_model: str | None = field(
        default=None, metadata={"help": "Model for MAUVE, such as gpt2-large. None: none."}
    )
    batch_size: int = field(default=8, metadata={"help": "Prefixes in a batch; 1 for latencies as in the paper."})
    output: str | None = field(default=None, metadata={"help": "A JSON file for texts and figures."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.models or len(set(self.models)) < len(self.models):
            raise ValueError(f"models must name at least one model, and each once, got {self.models}")


def load(name: str, device: Any) -> Any:
    """Return a model in evaluation mode."""
    return AutoModelForCausalLM.from_pretrained(name).eval().to(device)


def main() -> None:
    """Measure the models with every seed and print their table."""
    (setup,) = parse_settings(Setup)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    tokenizer = AutoTokenizer.from_pretrained(setup.models[0].replace("{seed}", str(setup.seeds[0])))
    texts = setup.load()
    prefixes = setup.prefixes(texts, tokenizer)
    retriever = DocumentRetriever.lexical(documents := documents_of(texts["train"]["text"], setup.document_words))
    whole_words, longest = setup.units == "words", setup.max_tokens
    miner = WordNgrams(max_tokens=longest) if whole_words else TokenNgrams(setup.min_tokens, longest)

    def vocabulary_of(vocab_size: int, tokens: Sequence[int]) -> PhraseVocabulary:
        found = retriever.retrieve([tokenizer.decode(list(tokens))], setup.num_documents)[0]
        nearest = {name: documents[name] for name, _ in found}
        return PhraseVocabulary.from_documents(nearest, tokenizer, miner, vocab_size=vocab_size)

    banned = [
        ids for word in setup.never for ids in tokenizer([word, f" {word}"], add_special_tokens=False)["input_ids"]
    ]
    features: dict[str, Any] = {}
    if (name := setup.feature_model) is not None:
        features = {"feature_model": load(name, device), "feature_tokenizer": AutoTokenizer.from_pretrained(name)}
    table, written, all_continued = defaultdict(list), defaultdict(list), defaultdict(list)
    for seed, name in product(setup.seeds, setup.models):
        if seed != setup.seeds[0] and "{seed}" not in name and not setup.do_sample:
            continue  # the same model writes the same text
        model = load(name.replace("{seed}", str(seed)), device)
        judge_name = (setup.judge or setup.models[0]).replace("{seed}", str(seed))
        judges = AutoTokenizer.from_pretrained(judge_name)
        judge_tokenizer = None if judges.get_vocab() == tokenizer.get_vocab() else judges
        phrases_of = partial(vocabulary_of, model.get_output_embeddings().weight.shape[0])
        set_seed(seed)
        continued = continue_prefixes(
            model,
            prefixes,
            new_tokens=setup.new_tokens,
            prepare=with_phrases(model, phrases_of) if isinstance(model, DynamicVocabForCausalLM) else None,
            batch_size=setup.batch_size,
            do_sample=setup.do_sample,
            bad_words_ids=banned or None,
            **({"top_p": setup.top_p, "top_k": 0} if setup.do_sample else {}),
        )
        judge: Any = {"judge": load(judge_name, device), "judge_tokenizer": judge_tokenizer, **features}
        table[name].append(columns := measure_continuations(continued, prefixes, tokenizer, **judge))
        all_continued[name].append(continued)
        written[name].append([tokenizer.decode(tokens) for tokens in continued.tokens])
        print(f"{name}, seed {seed}: diversity {columns['diversity']:.1f}", flush=True)
    print(f"\n{format_columns(table)}\n\nAgainst the first:\n\n{format_column_differences(table)}")
    print(f"\nIntervals of 95%, over prefixes:\n\n{format_intervals(all_continued)}")
    content = {"settings": asdict(setup), "figures": table, "texts": written}
    if setup.output is not None:
        write_json(Path(setup.output), content)
    if (name := setup.pairwise_judge) is not None:
        pairwise = PairwiseJudge(load(name, device), AutoTokenizer.from_pretrained(name))
        compared = pairwise.compare_with_first([tokenizer.decode(prefix.tokens) for prefix in prefixes], written)
        print(f"\nShares of texts that {name} finds better than the first model's:\n\n{format_preferences(compared)}")
        if setup.output is not None:
            content["preferences"] = {name: asdict(one) for name, one in compared.items()}
            write_json(Path(setup.output), content)


if __name__ == "__main__":
    main()
