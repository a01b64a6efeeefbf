"""The languages of a teacher that translates between many."""

import re
from typing import Any

from transformers import PreTrainedTokenizerBase

_MARK = re.compile(r">>[^<>]*<<")  # of Marian's models of several target languages


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
    codes = _codes(named)
    if missing := [code for code in (source, target) if code not in codes]:
        raise ValueError(
            f"the teacher does not have the language {', '.join(missing)}; give its tokenizer's codes, such as "
            f"{', '.join(list(codes)[:3])}"
        )
    named.src_lang, named.tgt_lang = source, target
    return {"forced_bos_token_id": int(named.convert_tokens_to_ids(codes[target]))}


def check_prefix(tokenizer: PreTrainedTokenizerBase, prefix: str | None) -> None:
    """Check that the language in a prefix such as `">>de<<"` is a token.

    Raises:
        ValueError: If it is not, for then the teacher reads its letters as a text.
    """
    known = tokenizer.get_vocab() if prefix and _MARK.search(prefix) else {}
    for mark in _MARK.findall(prefix or ""):
        if mark not in known:
            others = sorted(filter(_MARK.fullmatch, known))
            ways = f"give one that it has, such as {', '.join(others[:3])}" if others else "leave it out"
            raise ValueError(f"the teacher's tokenizer has no token {mark}, of source_prefix={prefix!r}; {ways}")


def _codes(tokenizer: Any) -> dict[str, str]:
    """Return the token of each language, by the tokenizer's name of it.

    Any word may be a piece of the vocabulary, "de" and "en" among them, so that a piece is no sign of a language.
    """
    if tokens := getattr(tokenizer, "lang_code_to_token", None):  # M2M100
        return dict(tokens)
    roles = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token, tokenizer.pad_token}
    roles |= {tokenizer.sep_token, tokenizer.cls_token, tokenizer.mask_token}
    return {token: token for token in tokenizer.all_special_tokens if token not in roles}
