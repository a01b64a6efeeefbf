"""lm-eval's models `hf-targets` and `hf-targets-mdlm`, on tasks of 20 items that the tests write themselves."""

import json

import lm_eval
import pytest
import torch
import yaml
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from hf_targets import NeuralCache, cached_perplexities
from hf_targets.harness import MaskedDiffusionLM, TargetsLM
from tests.masked_diffusion.models import MASK, make_mdlm
from tests.tiny_models import WORDS, make_dynamic_model, make_model, make_vocabulary, token_ids
from tests.tiny_seq2seq import make_pair_model

TASKS = {
    "choose": {"output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "label"},
    "measure": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "text"},
    "write": {"output_type": "generate_until", "generation_kwargs": {"until": ["w7"], "max_gen_toks": 5}},
}


@pytest.fixture(scope="module")
def responses(tmp_path_factory):
    """Return what gives the answers of a model to all items, by task."""
    folder = tmp_path_factory.mktemp("tasks")
    texts = [WORDS.decode(row) for row in token_ids(20, 12).clamp(1, MASK - 1)]
    words = [text.split() for text in texts]
    items = [
        {"prompt": " ".join(row[:6]), "choices": [" ".join(row[6:8]), " ".join(row[8:])], "label": 0, "text": text}
        for row, text in zip(words, texts, strict=True)
    ]
    (folder / "items.json").write_text("\n".join(map(json.dumps, items)))
    files = {"data_files": {"test": str(folder / "items.json")}, "cache_dir": str(folder / "read")}
    common = {"dataset_path": "json", "dataset_kwargs": files, "test_split": "test", "doc_to_text": "{{prompt}}"}
    for name, task in TASKS.items():
        described = {"task": name, **common, "doc_to_target": "text", **task}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(described))
    manager = TaskManager(include_path=str(folder), include_defaults=False)

    def ask(model, **settings):
        found = lm_eval.simple_evaluate(model, tasks=[*TASKS], task_manager=manager, bootstrap_iters=0, **settings)
        return {task: [sample["resps"] for sample in samples] for task, samples in found["samples"].items()}

    return ask


def requests(kind, *arguments):
    return [Instance(kind, {}, one, number) for number, one in enumerate(arguments)]


def ours(model, kind=TargetsLM, **settings):
    return kind(model, tokenizer=WORDS, **{"batch_size": 4, **settings})


def test_a_wrapped_model_with_nothing_switched_on_equals_its_base_in_every_task(responses):
    heads, phrases = make_model("gpt2", target="difference", ensemble_weight=0.5), make_dynamic_model("gpt2")
    base = responses(HFLM(heads.backbone, tokenizer=WORDS, batch_size=4))
    assert [len(base[task]) for task in TASKS] == [20, 20, 20]
    assert responses(ours(heads, ensemble_weight=0, cache_weight=0)) == base
    assert responses(ours(phrases)) == base
    assert responses(ours(heads)) != base, "the configuration's ensemble"


def test_the_ensemble_weight_of_one_model_does_not_reach_another_that_shares_it():
    model = make_model("gpt2", target="difference")
    ensemble, plain = ours(model, ensemble_weight=0.5), ours(model)
    ids = token_ids(1, 9)
    text, rest = WORDS.decode(ids[0, :5]), " " + WORDS.decode(ids[0, 5:])
    for lm, weight in ((ensemble, 0.5), (plain, 0.0)):
        logits = model(ids, ensemble_weight=weight).logits[0, 4:-1].log_softmax(dim=-1)
        expected = logits.gather(1, ids[0, 5:, None]).sum().item()
        assert lm.loglikelihood(requests("loglikelihood", (text, rest)))[0][0] == pytest.approx(expected, abs=1e-4)


def test_an_encoder_decoder_with_heads_reads_the_prompt_as_its_base_does():
    model, asked = make_pair_model(), requests("loglikelihood", ("w1 w2", " w3 w4"), ("w5", " w6"))
    base = HFLM(model.backbone, tokenizer=WORDS, batch_size=4).loglikelihood(asked)
    assert ours(model, ensemble_weight=0).loglikelihood(asked) == base
    assert ours(model, ensemble_weight=0.5).loglikelihood(asked) != base


def test_a_cache_gives_the_likelihood_of_a_text_that_its_perplexity_has_and_generates():
    model, cache = make_model("llama", target="embedding"), NeuralCache(window=6, theta=2.0, weight=0.5)
    lm = ours(model, cache_window=6, cache_theta=2.0, cache_weight=0.5)
    rows = token_ids(3, 12).clamp(min=1)
    found = lm.loglikelihood_rolling(requests("loglikelihood_rolling", *((WORDS.decode(row),) for row in rows)))
    for row, likelihood in zip(rows, found, strict=True):
        block = {"input_ids": [lm.prefix_token_id, *row.tolist()]}
        measured = cached_perplexities(model, [block], {"cache": cache})["cache"]
        assert -likelihood == pytest.approx(measured.nll, rel=1e-4)
    asked = requests("generate_until", (WORDS.decode(rows[0]), {"until": [], "max_gen_toks": 6}))
    assert lm.generate_until(asked) != ours(model).generate_until(asked)


def test_written_phrases_are_part_of_the_answer():
    model, vocabulary = make_dynamic_model("gpt2"), make_vocabulary()
    settings = {"max_gen_toks": 6, "phrase_bias": 100.0, "until": []}
    asked = requests("generate_until", ("w1 w2 w3", settings), ("w4 w5", settings))
    for answer in ours(model, phrases=vocabulary).generate_until(asked):
        assert any(answer.startswith(WORDS.decode(phrase)) for phrase in ((1, 2), (3, 4, 5), (7, 8, 9, 10)))


@pytest.fixture(scope="module")
def diffusion():
    return make_mdlm(max_position_embeddings=32)


def test_the_bound_of_two_tokens_is_the_mean_over_both_orders_of_filling_them_in(diffusion):
    lm = ours(diffusion, MaskedDiffusionLM, num_draws=32)
    rows = token_ids(3, 6).clamp(1, MASK - 1)
    pairs = [(WORDS.decode(row[:4]), " " + WORDS.decode(row[4:])) for row in rows]
    found = lm.loglikelihood(requests("loglikelihood", *pairs))
    expected = torch.zeros(3)
    for share, hidden in ((1.0, [4, 5]), (0.5, [4]), (0.5, [5])):  # a token is first or second in half of the orders
        where = torch.zeros(rows.shape, dtype=torch.bool).index_fill(1, torch.tensor(hidden), value=True)
        log_p = diffusion.log_probabilities(rows.masked_fill(where, MASK), where).view(3, len(hidden), -1)
        expected += share / len(hidden) * log_p.gather(2, rows[:, hidden, None]).sum(dim=(1, 2))
    for (likelihood, _), error, mean in zip(found, lm.standard_errors, expected.tolist(), strict=True):
        assert abs(likelihood - mean) < 4 * error < 0.5 * abs(mean)
    choices = [(pairs[0][0], one) for one in (f"{pairs[0][1]} w3", pairs[0][1])]  # in one batch with a longer one
    assert lm.loglikelihood(requests("loglikelihood", *choices))[1][0] == pytest.approx(found[0][0], rel=1e-4)


def test_a_diffusion_model_answers_by_filling_in_and_its_answer_is_greedy(diffusion, responses):
    lm = ours(diffusion, MaskedDiffusionLM, num_draws=2, num_times=2)
    ids = token_ids(1, 6).clamp(1, MASK - 1)
    filled = diffusion.generate(ids, max_length=9, sampler="confidence", temperature=0.0)[0]
    prompt, hole = WORDS.decode(ids[0]), WORDS.convert_ids_to_tokens(MASK)
    settings = {"until": [], "max_gen_toks": 3}
    inside = f"w1 {hole} {hole} w2"
    canvas = diffusion.generate(torch.tensor([WORDS.encode(inside)]), sampler="confidence", temperature=0.0)[0]
    asked = requests("generate_until", (inside, settings), (prompt, settings))
    assert lm.generate_until(asked) == [WORDS.decode(canvas[1:3]), WORDS.decode(filled[6:])]
    asked = requests(
        "loglikelihood", *((prompt, f" {WORDS.decode(one)}") for one in (filled[6:], 1 + filled[6:] % (MASK - 1)))
    )
    assert [greedy for _, greedy in lm.loglikelihood(asked)] == [True, False]
    assert {len(answers) for answers in responses(lm).values()} == {20}
    assert lm.get_model_info()["bound_standard_error"] > 0


@pytest.mark.parametrize(
    ("kind", "make", "settings", "word"),
    [
        (TargetsLM, make_mdlm, {}, "hf-targets-mdlm"),
        (MaskedDiffusionLM, make_model, {}, "choose hf-targets"),
        (MaskedDiffusionLM, make_mdlm, {"num_draws": 0}, "one draw"),
        (TargetsLM, make_model, {"ensemble_weight": 2.0}, "ensemble_weight"),
        (TargetsLM, make_model, {"ensemble_weight": 0.1, "cache_weight": 0.1}, "cache_weight"),
        (TargetsLM, make_model, {"phrases": "folder"}, "phrases"),
        (TargetsLM, make_dynamic_model, {"ensemble_weight": 0.1}, "no heads"),
    ],
)
def test_what_does_not_go_together_is_refused(kind, make, settings, word):
    with pytest.raises(ValueError, match=word):
        ours(make(), kind, **settings)
