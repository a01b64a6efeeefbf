from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from lab.curve_steps import curves_of_predictions, plot_curve_steps
from tests.gaussian_diffusion.models import make_difformer
from tests.tiny_seq2seq import pairs


@pytest.mark.filterwarnings("error:Glyph")
@pytest.mark.parametrize("kind", ["curve", "curves"])
def test_the_states_that_generation_keeps_are_those_of_its_texts(kind, tmp_path):
    model, source = make_difformer(kind), {name: pairs(2)[name] for name in ("input_ids", "attention_mask")}
    options = {"num_noises": 2, "num_reverse_steps": 7, "selection": "confidence"}
    plain = model.generate(**source, **options, generator=torch.Generator().manual_seed(0))
    output = model.generate(**source, **options, generator=torch.Generator().manual_seed(0), output_predictions=True)
    assert torch.equal(output.sequences, plain) and len(output.control_points) == output.num_evaluations
    steps = curves_of_predictions(model, output)
    length = len(steps[-1].canvas)
    assert torch.equal(steps[-1].canvas, output.candidates[0, 0, :length])
    for step, words in zip(steps, output.predicted_embeddings, strict=True):
        torch.testing.assert_close(step.tokens.float(), words[0, 0, :length], rtol=1e-3, atol=1e-3)
        assert torch.allclose(step.curve[[0, -1]], step.control_points[[0, -1]])
    plot_curve_steps(steps, tmp_path / "steps.png", SimpleNamespace(decode=lambda ids: rf" $\{ids[0]}$" "\x02"))
    assert Image.open(tmp_path / "steps.png").format == "PNG"
