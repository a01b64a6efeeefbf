"""The languages of a teacher that translates between many."""

from typing import Any

from transformers import PreTrainedTokenizerBase


def choose_languages(tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None) -> dict[str, int]:
    """Set the languages of a tokenizer, and return what `generate` takes for the target.

    Args:
        tokenizer: Of a model such as M2M100, NLLB or mBART; with no language given, of any model.
        source: As the tokenizer names it, such as `"de"`, `"deu_Latn"` or `"de_DE"`. None: nothing is set.
        target: Likewise.
    Raises:
        ValueError: If one language is given without the other, or the tokenizer does not have them.
    """
    if (source is None) != (target is None):
        raise ValueError(f"a teacher of many languages needs both of a pair, got {source!r} and {target!r}")
    if source is None or target is None:
        return {}
    named: Any = tokenizer
    if not hasattr(named, "src_lang"):
        raise ValueError(
            f"{type(tokenizer).__name__} has no languages to choose from, got {source!r} and {target!r}; leave them "
            "out, or give the begin of each source as source_prefix"
        )
    tokens = getattr(named, "lang_code_to_token", {})
    known = {code: tokenizer.convert_tokens_to_ids(tokens.get(code, code)) for code in (source, target)}
    missing = [code for code, number in known.items() if number in (None, tokenizer.unk_token_id)]
    if missing:
        raise ValueError(
            f"the teacher does not have the language {', '.join(missing)}; give its tokenizer's codes, such as "
            f"{', '.join(list(tokens)[:3]) or ', '.join(map(str, tokenizer.all_special_tokens[-3:]))}"
        )
    named.src_lang, named.tgt_lang = source, target
    return {"forced_bos_token_id": int(known[target])}  # pyright: ignore[reportArgumentType]
