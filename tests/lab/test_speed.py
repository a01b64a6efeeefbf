from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from lab import speed
from lab.speed import DecodingMethod as Method
from lab.speed import compare_speeds
from tests.tiny_models import make_backbone, make_drafting_model, token_ids
from tests.tiny_seq2seq import make_pair_drafting_model, pairs

NUM_NEW = 12
END = 9
PROMPTS = [token_ids(1, 7), token_ids(3, 7), token_ids(2, 5, seed=1)]


class Recites(torch.nn.Module):
    """A model that reads its input `passes` times, and then gives the same text whatever it has read."""

    device, config = torch.device("cpu"), SimpleNamespace(is_encoder_decoder=False)

    def __init__(self, texts, passes=1, end=END, clock=None, takes=()):
        super().__init__()
        self.texts, self.passes = torch.tensor(texts), passes
        self.generation_config = GenerationConfig(eos_token_id=end)
        self.clock, self.takes = clock, iter(takes)

    @property
    def base_model(self):
        return self

    def forward(self, ids):
        return (ids,)

    def generate(self, ids, *, attention_mask, do_sample, max_new_tokens, passes=None, **arguments):
        assert attention_mask.all()
        assert not do_sample
        for _ in range(self.passes if passes is None else passes):
            self(ids)
        if self.clock is not None:
            self.clock.now += next(self.takes)
        text = torch.cat([ids, self.texts.expand(len(ids), -1)[:, :max_new_tokens]], dim=1)
        return SimpleNamespace(sequences=text) if arguments.get("return_dict_in_generate") else text


def measure(rounds=1, max_new_tokens=NUM_NEW, batches=PROMPTS, **methods):
    prompts = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in batches]
    speeds = compare_speeds(methods, prompts, max_new_tokens=max_new_tokens, rounds=rounds)
    return {one.name: one for one in speeds}


def counted(model, **arguments):
    """Tokens a pass over all prompts, from what `generate` itself counts."""
    wanted = {"do_sample": False, "max_new_tokens": NUM_NEW, "return_dict_in_generate": True, **arguments}
    outputs = [model.generate(ids, attention_mask=torch.ones_like(ids), **wanted) for ids in PROMPTS]
    verified = sum(output.num_verifications for output in outputs)
    return 1 + sum(output.num_accepted_tokens for output in outputs) / verified


@pytest.mark.parametrize("num_branches", [1, 3])
def test_tokens_a_pass_are_those_that_generate_counts_and_one_without_drafts(num_branches):
    model = make_drafting_model("gpt2")
    arguments = {"draft_tokens": 3, "draft_branches": num_branches}
    speeds = measure(
        plain=Method(model, {}),
        bare=Method(model.backbone, {}),
        drafts=Method(model, arguments),
        other=Method(make_backbone("gpt2", seed=1), {}),
    )
    assert speeds["plain"].tokens_per_pass == speeds["bare"].tokens_per_pass == 1
    assert 1 < speeds["drafts"].tokens_per_pass == pytest.approx(counted(model, **arguments))
    assert [one.same for one in speeds.values()] == [1, 1, 1, 0]
    assert all(one.tokens_per_second > 0 for one in speeds.values())


def test_same_is_the_share_of_equal_rows_of_all_batches():
    rows = [[1, 2], [3, 4], [5, 6]]
    speeds = measure(
        batches=[token_ids(3, 2)] * 2, a=Method(Recites(rows), {}), b=Method(Recites([[1, 2], [3, 5], [5, 6]]), {})
    )
    assert (speeds["a"].same, speeds["b"].same) == (1, 2 / 3)
    ended = {"a": Method(Recites([[1, END, 0, 0], [1, 2, 3, END]]), {}), "b": Method(Recites([[1, END], [1, 2]]), {})}
    assert measure(batches=[token_ids(2, 2)], **ended)["b"].same == 0.5  # however long the other rows are


@pytest.mark.parametrize("end", [END, [END, 8]], ids=str)
def test_the_end_token_counts_and_padding_behind_it_does_not(end):
    texts = [[1, 2, 3, 4], [1, END, 0, 0], [END, END, END, END], [1, 2, 3, END]]
    model = Recites(texts, passes=4, end=end)
    found = measure(batches=[token_ids(4, 3)], a=Method(model, {}))["a"]
    assert found.tokens_per_pass == (11 - 4) / (4 * 4 - 4)  # the prompt's pass brings each row a token


def test_a_rate_is_of_each_batchs_fastest_round_in_which_the_ways_take_turns(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(speed, "settled_time", lambda device: clock.now)
    turns = []

    class Noted(Recites):
        def generate(self, *args, **arguments):
            turns.append(self.name)
            return super().generate(*args, **arguments)

    methods = {}
    for name, takes in {"a": [0, 0, 1, 5, 9, 2, 2, 9], "b": [0, 0, 4, 3, 4, 4, 40, 4]}.items():
        methods[name] = Method(Noted([[1, 2]], clock=clock, takes=takes), {})
        methods[name].model.name = name
    speeds = measure(batches=[token_ids(1, 2)] * 2, rounds=3, **methods)
    # four tokens in 1 and 2, and in 4 and 3 seconds: the first turn is not timed
    assert (speeds["a"].tokens_per_second, speeds["b"].tokens_per_second) == (4 / 3, 4 / 7)
    assert "".join(turns) == "abab" * 4


def test_translations_are_counted_and_compared_too():
    model, batch = make_pair_drafting_model("marian", "difference"), pairs(4)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    plain, draft = {"eos_token_id": None}, {"draft_tokens": 3, "eos_token_id": None}
    methods = {"plain": Method(model.backbone, plain), "drafts": Method(model, draft)}
    plain, drafts = compare_speeds(methods, [source], max_new_tokens=10, rounds=1)
    assert drafts.tokens_per_pass > plain.tokens_per_pass == plain.same == drafts.same == 1
