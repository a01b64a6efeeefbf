"""Our models in the pipelines of Transformers, from the folder that `save_pretrained` wrote."""

import pytest
import torch
from transformers import pipeline

from hf_targets.data.tokenization import word_level_tokenizer
from tests.mdlm_models import MASK, make_mdlm
from tests.tiny_models import VOCAB, WORDS, make_any


@pytest.mark.parametrize("kind", ["difference", "phrases"])
def test_a_text_generation_pipeline_writes_what_generate_does(kind, tmp_path):
    model = make_any("gpt2", kind)
    model.save_pretrained(tmp_path)
    WORDS.save_pretrained(tmp_path)
    write = pipeline("text-generation", str(tmp_path))
    assert type(write.model) is type(model)
    written = write("w1 w2 w3", max_new_tokens=4, do_sample=False, return_tensors=True)[0]["generated_token_ids"]
    prompt = WORDS("w1 w2 w3", return_tensors="pt")
    expected = write.model.generate(**prompt, max_new_tokens=4, do_sample=False)[0]
    assert written == expected.tolist()


@pytest.mark.parametrize("kind", ["difference", "phrases"])
def test_a_feature_extraction_pipeline_gives_the_hidden_states(kind, tmp_path):
    model = make_any("llama", kind)
    model.save_pretrained(tmp_path)
    WORDS.save_pretrained(tmp_path)
    features = pipeline("feature-extraction", str(tmp_path))("w1 w2 w3", return_tensors=True)
    expected = model.base_model(**WORDS("w1 w2 w3", return_tensors="pt"))[0]
    torch.testing.assert_close(features, expected)


def test_a_feature_extraction_pipeline_gives_the_hidden_states_of_masked_diffusion(tmp_path):
    model = make_mdlm()
    model.save_pretrained(tmp_path)
    features = pipeline("feature-extraction", str(tmp_path), tokenizer=WORDS)("w1 w2 w3", return_tensors=True)
    output = model(**WORDS("w1 w2 w3", return_tensors="pt"), output_hidden_states=True)
    torch.testing.assert_close(features, output.hidden_states[-1])


def test_a_fill_mask_pipeline_gives_the_most_probable_token(tmp_path):
    model = make_mdlm()
    words = word_level_tokenizer([" ".join(f"w{number}" for number in range(VOCAB - 4)) + "\n"])
    words.add_special_tokens({"mask_token": "<mask>"})
    words.split_special_tokens = False  # the mask is a token in the text, not a word
    assert words.mask_token_id == MASK
    model.save_pretrained(tmp_path)
    best = pipeline("fill-mask", str(tmp_path), tokenizer=words)("w1 <mask> w3", top_k=1)[0]
    ids = words("w1 <mask> w3", return_tensors="pt")["input_ids"]
    place = (ids[0] == MASK).nonzero().item()
    logits = model(ids).logits[0, place]
    assert best["token"] == logits.argmax() and best["score"] == pytest.approx(logits.max().exp().item(), rel=1e-4)
