"""`generate` of a masked diffusion model."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# (a mixin: configuration, schedule and log_probabilities are its model's)

from contextlib import nullcontext

import torch
from torch import Tensor

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.inputs import check_segments
from hf_targets.backbones.weight_access import execution_device
from hf_targets.masked_diffusion.sampling.canvas import blank_canvas, given_canvas
from hf_targets.masked_diffusion.sampling.loop import fill_canvas
from hf_targets.masked_diffusion.sampling.output import MaskedDiffusionGenerationOutput
from hf_targets.masked_diffusion.sampling.sampler import Sampler
from hf_targets.masked_diffusion.sampling.samplers import make_sampler
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw, Uniforms
from hf_targets.masked_diffusion.sampling.window import Streamer


class MaskedDiffusionGeneration:
    """`generate` for a model with `config`, `schedule` and `log_probabilities`; a `Denoiser`."""

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        batch_size: int | None = None,
        max_length: int | None = None,
        num_steps: int | None = None,
        sampler: str | Sampler = "cached",
        temperature: float = 1.0,
        top_p: float | None = None,
        tokens_per_step: int | None = None,
        entropy_bound: float | None = None,
        float64_sampling: bool = True,
        stride: int | None = None,
        generator: torch.Generator | None = None,
        streamer: Streamer | None = None,
        return_dict_in_generate: bool = False,
    ) -> Tensor | MaskedDiffusionGenerationOutput:
        """Generate texts, go on from prompts, or fill in what is masked; given tokens never change.

        | sampler         | unmasks                                                    | evaluations of a row  |
        |-----------------|------------------------------------------------------------|-----------------------|
        | `cached`        | at `num_steps` times, each token with the same chance      | its steps with tokens |
        | `ancestral`     | the same tokens, as the published program evaluates        | `num_steps`           |
        | `first_hitting` | one token after another, in continuous time                | its masked tokens     |
        | `confidence`    | those that the network is surest of                        | `num_steps`           |
        | `entropy_bound` | as many as hardly depend on each other                     | by the bound          |

        The first three draw from the model's distribution, `first_hitting` without an error of steps. The last two do
        not: their text is more repetitive, which perplexity under another model takes for better. Report the entropy of
        the tokens generated beside it.

        To generate from several threads at once, put the model into evaluation mode: in training mode, dropout is
        switched off and on again by every call.

        Args:
            input_ids: (batch, length), given tokens, with the mask id where tokens are to be filled in; None: nothing
                is given.
            attention_mask: (batch, length), 0 at padding, which stays as it is. Prompts are padded on the left.
            token_type_ids: (batch, length), as BERT's tokenizer gives them, all 0: the model knows no second segment.
            batch_size: Texts to generate without `input_ids`; None: 1.
            max_length: Tokens of the canvas, given ones counted: masks are appended up to it. A model of `predicted`
                rows (`masked_diffusion.rows`) takes the length that they were padded to, and leaves padding at the end
                of its text. None: as long as `input_ids`, or without them as the model's max_position_embeddings.
            sampler: One of these names, that of a registered one, or a `Sampler` with its options.
            num_steps: Of `ancestral`, `cached`, `confidence`; None: as many as the row with the most masked tokens has.
            temperature: 0 takes the most probable token.
            top_p: Draws among the most probable tokens of the network, as few as reach this probability together.
            tokens_per_step: Tokens that one evaluation of a row unmasks, of `first_hitting` (where more than 1 is an
                approximation) and `confidence`.
            entropy_bound: In nats, of `entropy_bound`, which needs it.
            float64_sampling: Whether tokens are drawn in float64; float32 lowers the temperature.
            stride: Lets a canvas be longer than max_position_embeddings: windows of that length, each `stride` tokens
                further, are filled from left to right, in `num_steps` steps each.
            generator: Of all random numbers, on the CPU or the model's device; None: the global one of that device.
            streamer: `put` gets the canvas (batch, length) on the CPU after each change, `end` is called at the end.
            return_dict_in_generate: Whether to return counts with the sequences.
        Returns: The filled canvas (batch, length), or with `return_dict_in_generate` all of
            `MaskedDiffusionGenerationOutput`.
        Raises:
            ValueError: If a value is out of range, an option is not one of this sampler, or there is nothing to fill.
        Source: Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models"; each sampler names its own.
        """
        check_segments(token_type_ids)
        config = self.config
        options = {"num_steps": num_steps, "tokens_per_step": tokens_per_step, "entropy_bound": entropy_bound}
        chosen = make_sampler(sampler, **options)
        draw = TokenDraw(
            Uniforms(generator, execution_device(self)),
            config.mask_token_id,
            temperature=temperature,
            top_p=top_p,
            float64=float64_sampling,
        )
        if input_ids is None:
            if attention_mask is not None:
                raise ValueError("attention_mask says where input_ids are padding; give input_ids, or leave it out")
            canvas = blank_canvas(
                1 if batch_size is None else batch_size,
                config.max_position_embeddings if max_length is None else max_length,
                config.mask_token_id,
                execution_device(self),
            )
        else:
            if batch_size is not None:
                raise ValueError(
                    f"batch_size is for texts without given tokens, got {batch_size} with input_ids; leave it out: "
                    "input_ids has a row for each text"
                )
            canvas = given_canvas(
                input_ids,
                attention_mask,
                max_length=max_length,
                mask_token_id=config.mask_token_id,
                vocab_size=config.vocab_size,
                device=execution_device(self),
            )
        is_training = any(module.training for module in self.modules())
        with without_dropout(self) if is_training else nullcontext():
            output = fill_canvas(
                self,
                canvas,
                chosen,
                draw,
                self.schedule,
                window=config.max_position_embeddings,
                stride=stride,
                streamer=streamer,
            )
        return output if return_dict_in_generate else output.sequences
