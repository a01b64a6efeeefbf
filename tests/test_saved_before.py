"""What was saved, and named, when modules lay elsewhere loads, and computes what it did: files name no modules."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

import hf_targets
from hf_targets import PhraseIndex, PhraseVocabulary, word_level_tokenizer

FOLDER = Path(__file__).parent / "saved_before"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
IDS = torch.arange(1, 13).view(2, 6)
VOCAB = 20
NAMES = {
    "CanvasStreamer",
    "CanvasTrace",
    "ConstituencyPhrases",
    "CurveConfig",
    "DiffusionTrainer",
    "DiffusionTrainingArguments",
    "DocumentRetriever",
    "DraftedGenerationOutput",
    "DynamicVocabConfig",
    "DynamicVocabForCausalLM",
    "DynamicVocabTrainer",
    "DynamicVocabTrainingArguments",
    "ForwardMaximumMatching",
    "MaskedDiffusionGenerationOutput",
    "MdlmConfig",
    "MdlmForMaskedDiffusion",
    "MedusaReport",
    "MultiTokenConfig",
    "MultiTokenForCausalLM",
    "MultiTokenTrainer",
    "MultiTokenTrainingArguments",
    "PhraseCollator",
    "PhraseEncoder",
    "PhraseIndex",
    "PhraseSchedule",
    "PhraseVocabulary",
    "SentenceCurve",
    "TokenNgrams",
    "WordNgrams",
    "load_corpus",
    "load_medusa_heads",
    "pack_blocks",
    "save_medusa_for_vllm",
    "train_bpe_tokenizer",
    "word_level_tokenizer",
}


def check(name, values):
    given = values.flatten()[:: max(1, values.numel() // 24)]
    torch.testing.assert_close(given.detach(), torch.tensor(EXPECTED[name]), rtol=1e-4, atol=1e-4)


def test_heads_with_their_backbone():
    check("multitoken", AutoModelForCausalLM.from_pretrained(FOLDER / "multitoken")(IDS).logits)


def test_heads_alone(monkeypatch):
    monkeypatch.chdir(FOLDER)  # they name their base "base"
    output = AutoModelForCausalLM.from_pretrained("heads")(IDS, labels=IDS)
    check("heads", torch.stack([output.loss, *output.loss_parts.values()]))


def test_a_dynamic_vocabulary_with_its_phrases():
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "phrases")
    words = word_level_tokenizer([" ".join(f"w{number}" for number in range(VOCAB - 3)) + "\n"])
    phrases = PhraseVocabulary.load(FOLDER / "vocabulary", words)
    check("phrases", model(torch.tensor([[1, VOCAB, 3, VOCAB + 1]]), phrases=phrases).logits)


def test_an_index_of_phrases():
    index = PhraseIndex.load(FOLDER / "index")
    assert index.search(torch.ones(1, 4), 3)[1].flatten().tolist() == EXPECTED["index"]


@pytest.mark.parametrize("name", ["mdlm", "curve"])
def test_masked_diffusion(name):
    canvas = IDS.clone()
    canvas[:, ::2] = VOCAB - 1
    check(name, AutoModelForMaskedLM.from_pretrained(FOLDER / name)(canvas).logits)


def test_every_public_name_of_then_is_one_now():
    assert set(hf_targets.__all__) >= NAMES
