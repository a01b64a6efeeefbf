"""Trained models, as `make models` leaves them: what is put around them leaves their answers as they are."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import (
    DocumentCollection,
    DynamicVocabForCausalLM,
    MdlmForMaskedDiffusion,
    MultiTokenForCausalLM,
    PhraseVocabulary,
    SemiAutoregressiveForCausalLM,
    draft,
    load_corpus,
)
from lab.speed import row_passes
from tests.programs import ROOT

SMOLLM2, MINILM = ROOT / "models" / "smollm2-135m", ROOT / "models" / "minilm"
needs_smollm2, needs_minilm = pytest.mark.real(SMOLLM2.name), pytest.mark.real(MINILM.name)


@pytest.fixture(scope="module")
def ask():
    """Return a function of a question and arguments of `generate`, and the answers of the model as it is."""
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2)
    base = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32).eval()

    def answer(question, model=base, **arguments):
        chat = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        given = {"do_sample": False, "max_new_tokens": 48, "return_dict_in_generate": True, **arguments}
        output = model.generate(**inputs, **given)
        new = output.sequences[0, inputs["input_ids"].shape[1] :]
        return tokenizer.decode(new, skip_special_tokens=True), len(new), output

    answer.tokenizer = tokenizer
    answer.model = MultiTokenForCausalLM.from_base(base, ngram_size=4)
    return answer


@needs_smollm2
def test_a_model_with_heads_gives_the_answer_of_its_chat_template(ask):
    plain, _, _ = ask("What is the capital of France?")
    assert "Paris" in plain
    assert ask("What is the capital of France?", ask.model)[0] == plain


@needs_smollm2
def test_a_block_decoder_and_a_diffusion_model_begin_with_what_the_model_knows(ask):
    base, tokenizer = ask.model.backbone, ask.tokenizer
    blocks = SemiAutoregressiveForCausalLM.from_base(base, ngram_size=3).eval()
    assert blocks.config.residual
    assert ask("What is the capital of France?", blocks)[0] == ask("What is the capital of France?")[0]
    mask = tokenizer.convert_tokens_to_ids("<reponame>")
    model = MdlmForMaskedDiffusion.from_causal(base, mask_token_id=mask, annealing_steps=9).train()  # causal as yet
    canvas = tokenizer("The capital of France is Paris, on the river Seine.", return_tensors="pt").input_ids
    paris = tokenizer.convert_tokens_to_ids("ĠParis")
    found = model.log_probabilities(canvas.masked_fill(canvas == paris, mask), canvas == paris)
    assert found.argmax() == paris
    base.eval()


@needs_smollm2
def test_drafts_give_the_greedy_answer_in_fewer_passes_where_the_text_repeats(ask):
    text = "The lighthouse of Genoa is 77 metres tall, and its first stone was laid in the year 1128 by the town."
    question = f"Repeat this sentence word by word: {text}"
    plain, num_tokens, _ = ask(question)
    assert "lighthouse of Genoa" in plain
    assert ask(question, ask.model, draft_tokens=3)[0] == plain  # of heads that know nothing
    with row_passes(ask.model) as passes:
        assert ask(question, ask.model, prompt_lookup_num_tokens=8)[0] == plain
    assert len(passes) < 0.7 * num_tokens
    answer, _, output = ask(question, custom_generate=draft(documents=[text], tokenizer=ask.tokenizer))
    assert answer == plain and output.draft_report["passes"] < 0.5 * num_tokens


@needs_smollm2
def test_untrained_phrases_leave_the_probability_of_a_text_as_it_was(ask):
    tokenizer, base = ask.tokenizer, ask.model.backbone
    ids = tokenizer("".join(load_corpus("documentation:topics")["test"]["text"]), verbose=False)["input_ids"]
    windows = [ids[start : start + size] for start in range(160, 360) for size in range(2, 9)]
    phrases = PhraseVocabulary.from_token_ids(windows, tokenizer, vocab_size=base.config.vocab_size)
    text, model = torch.tensor([ids[:160]]), DynamicVocabForCausalLM.from_base(base, phrase_encoder_kind="mean").eval()
    with torch.no_grad():
        plain, ours = (float(model(text, labels=text, phrases=given).loss) for given in (None, phrases))
    assert len(phrases) > 1200 and 0 < ours - plain < 0.01


@needs_minilm
def test_an_encoder_finds_the_document_that_means_what_the_query_asks(tmp_path):
    encoder = pytest.importorskip("sentence_transformers").SentenceTransformer(str(MINILM), device="cpu")
    collection = DocumentCollection.create(tmp_path / "shelf", encoder)
    texts = {"pets": "The cat sat on the mat.", "sky": "Stars and planets shine.", "bread": "Knead flour and water."}
    collection.add(texts)
    found = collection.retrieve(["Which animals live in a home?", "How does one bake?", "astronomy"], k=1)
    assert [one for [(one, _)] in found] == ["pets", "bread", "sky"]
