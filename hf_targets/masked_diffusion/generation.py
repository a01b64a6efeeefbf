"""`generate` of a masked diffusion model."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# (a mixin: the model defines configuration, schedule and log_probabilities)

from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import register_fsdp_forward_method
from transformers.generation.streamers import BaseStreamer

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.inputs import check_segments
from hf_targets.backbones.weight_access import execution_device
from hf_targets.masked_diffusion.sampling import make_sampler
from hf_targets.masked_diffusion.sampling.canvas import (
    MaskedDiffusionGenerationOutput,
    Window,
    fill_canvas,
    given_canvas,
)
from hf_targets.masked_diffusion.sampling.sampler import Sampler
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw


class MaskedDiffusionGeneration:
    """`generate` for a model that has `config`, `schedule` and `log_probabilities`."""

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
        max_new_tokens: int | None = None,
        num_steps: int | None = None,
        sampler: str | Sampler = "cached",
        temperature: float = 1.0,
        top_p: float | None = None,
        tokens_per_step: int | None = None,
        entropy_bound: float | None = None,
        stride: int | None = None,
        generator: torch.Generator | None = None,
        streamer: BaseStreamer | None = None,
        return_dict_in_generate: bool = False,
        **others: Any,
    ) -> Tensor | MaskedDiffusionGenerationOutput:
        """Generate texts, continue prompts, or fill in masked tokens. Given tokens never change.

        | sampler         | tokens unmasked in a step                                | evaluations of a row       |
        |-----------------|----------------------------------------------------------|----------------------------|
        | `cached`        | random ones, in `num_steps` steps of time                | steps that change the row  |
        | `ancestral`     | as `cached`; evaluates each row until it is full         | at most `num_steps`        |
        | `first_hitting` | one random token, in continuous time                     | its number of masked tokens|
        | `confidence`    | those with the highest probability                       | at most `num_steps`        |
        | `entropy_bound` | those with the lowest entropy, as many as the bound lets | depends on the bound       |

        The first three samplers draw from the model's distribution; `first_hitting` has no discretisation error. Text
        of the last two repeats itself more, which lowers its perplexity under another model.

        To generate in several threads at once, put the model into evaluation mode.

        Args:
            input_ids: (batch, length), given tokens, with the mask id at positions to fill; None: no given tokens.
            attention_mask: (batch, length), 0 at padding, which does not change. Pad prompts on the left.
            token_type_ids: (batch, length), as BERT's tokenizer returns them; all must be 0, as there are no segments.
            batch_size: Number of texts to generate without `input_ids`; None: 1.
            max_length: Length of the canvas in tokens, given tokens included; masks are appended up to it. For a model
                trained on `predicted` rows (`masked_diffusion.rows`), give the length that these were padded to: its
                texts end with padding. None: the length of `input_ids`, or without them max_position_embeddings.
            max_new_tokens: In place of `max_length`: how many masks are appended to the given tokens.
            sampler: A name in the table, the name of a registered sampler, or a `Sampler` with its options.
            num_steps: Steps of `ancestral`, `cached`, `confidence`; None: the largest number of masked tokens in a row.
            temperature: Of sampling, 0 or more; 0 takes the most probable token.
            top_p: Samples only from the smallest set of most probable tokens whose probabilities sum to at least this.
            tokens_per_step: Tokens that one evaluation of a row unmasks, for `first_hitting` (where more than 1 is an
                approximation) and `confidence`.
            entropy_bound: In nats; required by the sampler `entropy_bound`.
            stride: Allows a canvas longer than max_position_embeddings. Windows of that length, which start `stride`
                tokens apart, are filled from left to right, each in `num_steps` steps.
            generator: Draws all random numbers, on the CPU or the model's device; None: that device's global generator.
            streamer: `put` receives the canvas (batch, length) on the CPU after each change; `end` is called last.
            return_dict_in_generate: Whether to return the sequences together with counts.
            others: Must be None; an error names the argument to give in their place.
        Returns: The filled canvas (batch, length), or with `return_dict_in_generate` a
            `MaskedDiffusionGenerationOutput`.
        Raises:
            ValueError: If a value is out of range, the sampler does not have an option, or there is nothing to fill.
        Source: Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models"; each sampler names its own.
        """
        if wrong := [name for name, value in others.items() if value is not None]:
            raise ValueError(
                f"a masked diffusion model fills a canvas by arguments of its own, got {', '.join(wrong)}; give "
                "temperature=0 in place of do_sample=False, several rows in place of num_return_sequences, and "
                "arguments in place of a generation_config"
            )
        if max_new_tokens is not None:
            if max_length is not None or max_new_tokens < 1:
                raise ValueError(
                    f"max_new_tokens must be 1 or more, without max_length, got {max_new_tokens} and {max_length}"
                )
            max_length = max_new_tokens + (0 if input_ids is None else input_ids.shape[-1])
        check_segments(token_type_ids)
        config, device = self.config, execution_device(self)
        options = {"num_steps": num_steps, "tokens_per_step": tokens_per_step, "entropy_bound": entropy_bound}
        chosen = make_sampler(sampler, **options)
        drawing = {"generator": generator, "temperature": temperature, "top_p": top_p}
        draw = TokenDraw(config.mask_token_id, device, **drawing)
        longest = config.max_position_embeddings
        if input_ids is None:
            input_ids = torch.zeros(1 if batch_size is None else batch_size, 0, dtype=torch.long)
            max_length = longest if max_length is None else max_length
        elif batch_size is not None:
            raise ValueError(f"batch_size is for texts without given tokens, got {batch_size}; leave it out")
        canvas = given_canvas(input_ids, attention_mask, max_length=max_length, config=config, device=device)

        def fill(window: Window) -> None:
            chosen.fill(window, draw, self.schedule)

        register_fsdp_forward_method(self, "log_probabilities")  # which does nothing where FSDP2 shards nothing
        with without_dropout(self):
            output = fill_canvas(self.log_probabilities, canvas, fill, window=longest, stride=stride, streamer=streamer)
        return output if return_dict_in_generate else output.sequences
