"""Every model in the pipelines of Transformers, from the folder that `save_pretrained` wrote."""

import pytest
import torch
from transformers import pipeline

from hf_targets.data.tokenization import word_level_tokenizer
from tests.model_cases import CASES, ONE_OF_A_CLASS
from tests.tiny_models import VOCAB

TEXT = "w1 w2 w3"


def make_tokenizer():
    """Return a tokenizer of as many tokens as the models have, the mask the last of them."""
    words = word_level_tokenizer([" ".join(f"w{number}" for number in range(VOCAB - 4)) + "\n"])
    words.add_special_tokens({"mask_token": "<mask>"})
    words.split_special_tokens = False  # the mask is a token in the text, not a word
    assert words.mask_token_id == VOCAB - 1
    return words


def check_text_generation(case, run, words):
    written = run(TEXT, max_new_tokens=4, do_sample=False, return_tensors=True)[0]["generated_token_ids"]
    expected = run.model.generate(**words(TEXT, return_tensors="pt"), max_new_tokens=4, do_sample=False)
    assert type(run.model) is case.model_class and written == expected[0].tolist()


def check_feature_extraction(case, run, words):
    expected = case.hidden(case.make(), words(TEXT, return_tensors="pt")["input_ids"])
    torch.testing.assert_close(run(TEXT, return_tensors=True), expected)


def check_fill_mask(case, run, words):
    best = run("w1 <mask> w3", top_k=1)[0]
    ids = words("w1 <mask> w3", return_tensors="pt")["input_ids"]
    probabilities = case.make()(ids).logits[ids == words.mask_token_id][0].softmax(-1)
    assert best["token"] == probabilities.argmax()
    assert best["score"] == pytest.approx(probabilities.max().item(), rel=1e-4)


CHECKS = {
    "text-generation": check_text_generation,
    "feature-extraction": check_feature_extraction,
    "fill-mask": check_fill_mask,
}


@pytest.mark.parametrize(("name", "task"), [(name, task) for name in ONE_OF_A_CLASS for task in CASES[name].pipelines])
def test_a_pipeline_gives_what_the_model_does(name, task, tmp_path):
    case, words = CASES[name], make_tokenizer()
    case.make().save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    CHECKS[task](case, pipeline(task, str(tmp_path)), words)
