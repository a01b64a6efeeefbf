import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.backbones.alignment import steps_into_sequence


@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=4), min_size=1, max_size=3
    )
)
def test_steps_count_from_the_start_of_each_document(rows):
    # a row is (padding, document length) pairs
    time = max(sum(pad + length for pad, length in row) for row in rows)
    mask, positions, expected = [], [], []
    for row in rows:
        m, p, e = [], [], []
        for pad, length in row:
            m += [0] * pad + [1] * length
            p += [0] * pad + list(range(length))
            e += [-1] * pad + list(range(length))
        fill = time - len(m)
        mask.append(m + [0] * fill)
        positions.append(p + [0] * fill)
        expected.append(e + [-1] * fill)
    steps = steps_into_sequence(len(rows), time, torch.tensor(mask), torch.tensor(positions), torch.device("cpu"))
    assert steps.tolist() == expected


def test_without_a_mask_a_row_is_one_sequence():
    assert steps_into_sequence(1, 4, None, None, torch.device("cpu")).tolist() == [[0, 1, 2, 3]]
    shared = torch.arange(4)[None]
    assert steps_into_sequence(2, 4, None, shared, torch.device("cpu")).tolist() == [[0, 1, 2, 3]] * 2


class _Steps(torch.nn.Module):
    def forward(self, mask):
        return steps_into_sequence(*mask.shape, mask, None, mask.device)


def test_they_are_exported_for_any_number_of_rows_and_tokens_without_what_onnx_lacks():
    anything = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(_Steps(), (torch.ones(2, 5).long(),), dynamic_shapes=(anything,), strict=False)
    assert not {"aten.cummax.default"} & {str(node.target) for node in exported.graph.nodes}
    mask = torch.tensor([[0, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]])
    assert torch.equal(exported.module()(mask), _Steps()(mask))
