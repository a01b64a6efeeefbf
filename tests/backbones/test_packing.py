"""A backbone either keeps the texts of a packed row apart or is refused, by every trainer that packs."""

import pytest
import torch
from transformers import AutoModelForCausalLM, DataCollatorWithFlattening, MixtralConfig

from hf_targets.backbones.packing import check_packing, text_numbers
from tests.model_cases import CASES, TRAINERS
from tests.tiny_backbones import FAMILIES, make_backbone
from tests.tiny_models import make_collator, token_ids


def test_texts_are_numbered_over_the_batch_and_begin_with_rows_and_where_positions_do():
    ids, positions = token_ids(2, 5), torch.tensor([[0, 1, 0, 0, 1], [0, 1, 2, 3, 0]])
    assert text_numbers(ids, positions).tolist() == [[0, 0, 1, 2, 2], [3, 3, 3, 3, 4]]
    assert text_numbers(ids[:, :2], positions[:1, :2]).tolist() == [[0, 0], [1, 1]]
    assert text_numbers(ids[:, :2], None).tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_backbone_is_refused_whose_texts_are_read_differently_in_a_packed_row_than_alone(family):
    model, texts = make_backbone(family).eval(), token_ids(2, 8)
    packed, positions = texts.view(1, 16), torch.arange(8).repeat(2)[None]
    together = model.base_model(packed, position_ids=positions, use_cache=False)[0].view(2, 8, -1)
    if torch.allclose(together, model.base_model(texts, use_cache=False)[0], atol=1e-4):
        check_packing(model, DataCollatorWithFlattening())
    else:
        with pytest.raises(ValueError, match="does not keep the texts"):
            check_packing(model, DataCollatorWithFlattening())
        check_packing(model, None)


def test_experts_are_taken_though_they_round_otherwise_when_other_tokens_come_to_them():
    sizes = {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MixtralConfig(**sizes, **heads, num_local_experts=8)).eval()
    check_packing(model, DataCollatorWithFlattening())


@pytest.mark.parametrize(("name", "model"), [("multitoken", "difference-opt"), ("phrases", "phrases-opt")])
def test_trainers_that_pack_refuse_it_before_training(name, model, tmp_path):
    case, packing = TRAINERS[name], make_collator() if name == "phrases" else DataCollatorWithFlattening()
    packing.padding_free = True
    args = case.arguments(str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(ValueError, match="OPTModel does not keep the texts of a packed row apart"):
        case.trainer(model=CASES[model].make(), args=args, train_dataset=case.rows(4), data_collator=packing)
