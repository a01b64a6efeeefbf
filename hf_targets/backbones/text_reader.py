"""Short texts under masks and positions, read by a causal model or a decoder, to find out what it can do."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_targets.backbones.decoder_positions import decoder_positions
from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.seq2seq_call import read_pair
from hf_targets.backbones.weight_access import execution_device
from hf_targets.backbones.wrapping import backbone_inputs

Reader = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def text_reader(backbone: PreTrainedModel) -> Reader:
    """Return a function from token ids (batch, time), a mask and positions to the last hidden states.

    A decoder reads them after a source of two tokens.
    """
    if not backbone.config.is_encoder_decoder:

        def read(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
            given = backbone_inputs(attention_mask=mask, position_ids=positions)
            return backbone.base_model(input_ids=ids, use_cache=False, **given)[0]

        return read
    source = backbone.get_encoder()(input_ids=torch.arange(1, 3, device=execution_device(backbone))[None])

    def read_after_source(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
        with decoder_positions(backbone, positions):
            return read_pair(
                backbone,
                encoder_outputs=source,
                decoder_input_ids=ids,
                use_cache=False,
                **backbone_inputs(decoder_attention_mask=mask),
            )[0]

    return read_after_source


@torch.no_grad()
def takes_shifted_rows(backbone: PreTrainedModel) -> bool:
    """Return whether a text that begins later in a row is read as the same text, tried on four tokens.

    So it is by decoders whose positions can be given, and by those that read distances alone. Rows of a batch that grow
    by different numbers of tokens need it.
    """
    device = execution_device(backbone)
    ids = torch.arange(1, 5, device=device)[None]
    mask = torch.tensor([[0, 1, 1, 1]], device=device)
    positions = torch.tensor([[0, 0, 1, 2]], device=device)
    try:
        with without_dropout(backbone):
            read = text_reader(backbone)
            shifted, plain = read(ids, mask, positions)[:, 1:].float(), read(ids[:, 1:], None, None).float()
    except torch.OutOfMemoryError:
        raise
    except (ValueError, TypeError, RuntimeError, IndexError):
        return False
    return torch.allclose(shifted, plain, rtol=0.02, atol=0.02 * float(plain.std()))
