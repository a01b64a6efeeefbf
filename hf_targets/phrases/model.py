"""A causal language model that reads and generates phrases as single steps, around any backbone."""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Cache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from hf_targets.backbones.backbone import check_backbone
from hf_targets.backbones.causal_call import CausalCall
from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.weight_access import execution_device, num_rows
from hf_targets.backbones.wrapping import (
    WrapsBackbone,
    check_copyable,
    check_loading,
    keep_weights,
    load_base,
    place_new_part,
    split_fields,
)
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.configuration import BASE_FIELDS, DynamicVocabConfig
from hf_targets.phrases.decoding.table import PhraseTable, vocabularies_of
from hf_targets.phrases.embedding_cache import PhraseEmbeddingCache, encoder_fingerprint
from hf_targets.phrases.encoder import PhraseEncoder, check_causal
from hf_targets.phrases.generation import PhraseGenerationMixin
from hf_targets.phrases.index import PhraseIndex
from hf_targets.phrases.interleaved_losses import interleaved_losses
from hf_targets.phrases.loss import phrase_loss, token_loss
from hf_targets.phrases.phrase_batch import PhraseBatch
from hf_targets.phrases.transplant import transplant_embeddings
from hf_targets.phrases.vocabulary.tokenization import tokenizer_fingerprint
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary

Phrases = PhraseVocabulary | Sequence[PhraseVocabulary] | PhraseTable


@dataclass
class DynamicVocabCausalLMOutput(CausalLMOutputWithPast):
    """What `DynamicVocabForCausalLM` returns, always.

    Attributes:
        loss: L = L_p + L_t + L_kl, weighted, if there are labels.
        loss_parts: Its terms, unweighted and detached: of `phrase`, `token` and `kl`, those that were computed.
        row_losses: The same terms of each row, (batch,) each: what is summed and divided by the number of targets.
        logits: (batch, time, V + P): tokens, then the P phrases of the call; None where they were skipped.
    """

    loss_parts: dict[str, Tensor] | None = None
    row_losses: dict[str, Tensor] | None = None


class DynamicVocabForCausalLM(WrapsBackbone, StrictLoading, PreTrainedModel, PhraseGenerationMixin):
    """Any causal language model, over its own tokens and any phrases that a call brings along.

    A phrase is one position: of the input, of the key-value cache and of the output. Its embedding is made by a phrase
    encoder from its tokens, and takes part as the rows of the backbone's own embeddings do: equation (1). The phrases
    are an argument of the call and never change the model; without them its output is the backbone's, bit for bit.

    Args:
        config: The configuration, with the backbone's and the phrase encoder's inside.
        backbone: A model to wrap as it is; one with random weights is made without it.
        encoder: A causal Transformer for the phrase encoder, used as it is; a new one without it.
    Raises:
        ValueError: If the backbone's logits are not its output embedding applied to its last hidden states, or the
            encoder is not causal.
    Source: Liu et al., "Generation with Dynamic Vocabulary".
    """

    config_class = DynamicVocabConfig
    new_part = "phrase_encoder"
    trained_by = "DynamicVocabTrainer"

    def __init__(
        self,
        config: DynamicVocabConfig,
        backbone: PreTrainedModel | None = None,
        encoder: PreTrainedModel | None = None,
    ) -> None:
        super().__init__(config)
        self.backbone = AutoModelForCausalLM.from_config(config.backbone) if backbone is None else backbone
        check_backbone(self.backbone)
        config.backbone = self.backbone.config
        if encoder is not None:
            config.phrase_encoder_width = check_causal(encoder)
        widths = self.get_input_embeddings().embedding_dim, self.get_output_embeddings().in_features
        self.phrase_encoder = PhraseEncoder(config, *widths, transformer=encoder)
        config.phrase_encoder = self.phrase_encoder.transformer.config
        self._embeddings = PhraseEmbeddingCache()
        keep_weights(*(model for model in (backbone, encoder) if model is not None))
        self.post_init()

    @classmethod
    def from_base(
        cls,
        base: PreTrainedModel | str | PathLike,
        phrase_encoder: PreTrainedModel | str | PathLike | None = None,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        encoder_tokenizer: PreTrainedTokenizerBase | None = None,
        backbone_kwargs: dict[str, Any] | None = None,
        **config: Any,
    ) -> Self:
        """Give a causal language model a phrase encoder.

        Args:
            base: A model, used as it is and not copied, or the name or path of one.
            phrase_encoder: What the encoder begins as: any causal language model, whose Transformer is used as it is,
                or its name or path; None: a copy of the base model's, as in the paper.
            tokenizer: The base model's; vocabularies of another are then refused. Where the encoder begins as a model
                with another, its embedding of each of these tokens is made of those of its own that spell it.
            encoder_tokenizer: The encoder's own. Both are loaded from the models' names if they are not given; models
                with as many tokens and no tokenizer to be found are taken to have the same.
            backbone_kwargs: Passed to `AutoModelForCausalLM.from_pretrained` where a model is a name or a path.
            config: Fields of `DynamicVocabConfig`: `projection`, `tie_phrase_embeddings`, `kl_loss_weight` ... Where a
                model is a name or a path also `dtype`, `device_map`, `attn_implementation` and the other
                `LOADING_ARGUMENTS`, which may stand in `backbone_kwargs` as well.
        Raises:
            ValueError: If a field is unknown or out of range, a model has no output embedding or is not causal, or the
                two models have different vocabularies and a tokenizer is not known.
        """
        config, loading = split_fields(DynamicVocabConfig, config, BASE_FIELDS)
        loading |= backbone_kwargs or {}
        check_loading(loading, base, phrase_encoder)
        base = load_base(base, loading)
        if isinstance(base, DynamicVocabForCausalLM):
            raise ValueError("the base model has a phrase encoder already; give its `.backbone` for a new one")
        if phrase_encoder is None:
            check_copyable(base)
            encoder = cast(PreTrainedModel, copy.deepcopy(base.base_model))
        else:
            model = load_base(phrase_encoder, loading, "phrase_encoder")
            encoder = transplant_embeddings(model, base, encoder_tokenizer, tokenizer)
            if encoder is base.base_model:
                encoder = copy.deepcopy(encoder)  # a model of its own: shared weights are saved once
        # Copies: a composite configuration resets the attention implementation of the ones it is given.
        configs = {"backbone": copy.deepcopy(base.config), "phrase_encoder": copy.deepcopy(encoder.config)}
        model = cls(DynamicVocabConfig(**configs, dtype=base.dtype, **config), backbone=base, encoder=encoder)
        output = model.get_output_embeddings()
        place_new_part(model, base, "phrase_encoder")
        if execution_device(output).type != "meta":
            model.phrase_encoder.fit_scale(model.get_input_embeddings(), output)
        if tokenizer is not None:
            model.config.tokenizer_fingerprint = tokenizer_fingerprint(tokenizer)
        model.generation_config = copy.deepcopy(base.generation_config)
        return model.train(base.training)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """Resize the backbone's vocabulary, and with it that of the phrase encoder, which reads the same tokens.

        Vocabularies of phrases made before have other ids than the model then expects, and are refused.
        """
        embedding = self.backbone.resize_token_embeddings(*args, **kwargs)
        if args or kwargs:
            self.phrase_encoder.transformer.resize_token_embeddings(*args, **kwargs)
        return embedding

    def phrase_table(self, phrases: Phrases, counts: Sequence[int] | None = None) -> PhraseTable:
        """Return the table of phrases, to give in place of them to several calls.

        Embeddings are kept between calls by the phrases' tokens, until the encoder changes.

        Args:
            phrases: One vocabulary for all rows of a batch, or one for each; a table is returned as it is.
            counts: How many slots of each vocabulary are there, the others to come later; None: all.
        Raises:
            ValueError: If a vocabulary is of another size or tokenizer than the model's, there is none, memory is too
                small, or a phrase of a table was removed since it was made.
        """
        if isinstance(phrases, PhraseTable):
            phrases.check_current()
            return phrases
        vocabularies = vocabularies_of(phrases)
        vocab_size = num_rows(self.get_output_embeddings())
        expected = cast(DynamicVocabConfig, self.config).tokenizer_fingerprint or vocabularies[0].fingerprint
        for vocabulary in vocabularies:
            if vocabulary.fingerprint != expected:
                raise ValueError(
                    "a vocabulary is of another tokenizer than the model or the other rows, so that its ids mean other "
                    "tokens; make it with the model's tokenizer"
                )
            if vocabulary.vocab_size != vocab_size:
                raise ValueError(
                    f"phrase ids begin where the model's {vocab_size} tokens end, and the vocabulary's begin at "
                    f"{vocabulary.vocab_size}; make it with the model's tokenizer and vocab_size={vocab_size}"
                )
        return self._embeddings.table(self.phrase_encoder, vocabularies, counts)

    def index_phrases(self, vocabulary: PhraseVocabulary, **settings: Any) -> PhraseIndex:
        """Return an index of a vocabulary's phrases, for `phrase_index` of `generate`.

        Args:
            settings: Of `PhraseIndex.build`: `mode="exact"`, or `"ivf"` for many phrases; `num_probes` ...
        Raises:
            ValueError: As `phrase_table` and `PhraseIndex.build` do.
        """
        with torch.no_grad():
            rows = self.phrase_table(vocabulary).output_rows
        return PhraseIndex.build(rows, fingerprint=self.phrase_fingerprint(vocabulary), **settings)

    def phrase_fingerprint(self, vocabulary: PhraseVocabulary) -> dict[str, str]:
        """Return what an index on disk is of, to give to `PhraseIndex.load`: this encoder, and these phrases."""
        ids, offsets, alive = vocabulary.arrays()
        phrases = hashlib.sha256(ids.tobytes() + offsets.tobytes() + alive.tobytes()).hexdigest()
        return {"phrase encoder": encoder_fingerprint(self.phrase_encoder), "phrases": phrases}

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        phrases: Phrases | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> DynamicVocabCausalLMOutput:
        """Predict.

        With the fields of a `PhraseBatch`, which `PhraseCollator` makes, the loss is L_p + L_t + L_kl. With labels
        alone
        it is that of the sequence given: over tokens, or over tokens and `phrases`.

        Args:
            input_ids: (batch, time), tokens, and phrases from V on.
            attention_mask: (batch, time), 0 at padding on either side.
            position_ids: (batch, time); in packed rows they start again at 0 with each document.
            labels: (batch, time), unshifted, -100 is not a target; phrases from V on.
            token_type_ids: (batch, time), for a backbone that takes them.
            phrases: One vocabulary for all rows, one for each, or a table of `phrase_table`.
            num_items_in_batch: What every part of the loss is divided by; None counts the targets of `labels`.
            logits_to_keep: Only the last so many positions' logits, or those of these indices; 0 is all.
            skip_logits: Whether to leave the logits out; None leaves them out in training with labels.
            kwargs: The fields of a `PhraseBatch`; `shift_labels`, (batch, time): labels that are shifted already, the
                target of each position at its own index, which take precedence over `labels`; all else is passed to the
                backbone.
        Raises:
            ValueError: If labels or the attention mask have another shape, labels are missing beside
                `num_items_in_batch`, an id is neither a token nor a phrase of its row, logits of positions beyond the
                text are asked for, the fields of `PhraseCollator` point to nothing or are there in part only, or
                `phrases` beside them.
        """
        batch = PhraseBatch.taken_from(kwargs)
        if phrases is not None and batch is not None:
            raise ValueError("a training batch brings its own phrases; leave out phrases or phrase_input_ids")
        if token_type_ids is not None and batch is not None:
            raise ValueError("token_type_ids are of the text in tokens, and a batch with phrases has another beside it")
        call = CausalCall.of(
            DynamicVocabCausalLMOutput,
            kwargs,
            return_dict=return_dict,
            logits_to_keep=logits_to_keep,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            labels=labels,
            token_type_ids=token_type_ids,
            num_items_in_batch=num_items_in_batch,
        )
        table = None if phrases is None else self.phrase_table(phrases)
        if table is not None and not table.num_slots:
            table = None
        self._check_ids(table, call)
        embeds = None if table is None or input_ids is None else self._embed(input_ids, table)
        outputs = call.read(self.backbone, embeds)
        hidden: Tensor = outputs[0]
        output, targets = self.get_output_embeddings(), call.targets()

        loss = loss_parts = row_losses = logits = None
        if targets is not None:
            count = call.count(targets)
            if table is None:
                parts = {"token": token_loss(hidden, targets, output)}
            else:
                rows, excluded = table.rows_of_batch(*targets.shape)
                parts = {"phrase": phrase_loss(hidden, targets, output, rows, excluded)}
            weights = dict.fromkeys(parts, 1.0)
            if batch is not None:
                num_targets = (targets != IGNORED).sum(dim=1)
                parts |= interleaved_losses(self, hidden, num_targets, batch, call.others)
                weights = {name: getattr(self.config, f"{name}_loss_weight") for name in parts}
            # The paper leaves open what L_p is divided by: the number of tokens, so that this sum over fewer and longer
            # steps stays comparable with L_t: nats for each token of the text. L_kl has its 1/m (`kl_divisor`).
            loss = torch.stack([weights[name] * part.sum() / count for name, part in parts.items()]).sum()
            loss_parts = {name: (part.sum() / count).detach() for name, part in parts.items()}
            row_losses = {name: part.detach() for name, part in parts.items()}
        if call.wants_logits(skip_logits, training=self.training):
            logits = output(hidden[:, call.kept])
            if table is not None:
                logits = torch.cat([logits, table.logits(hidden[:, call.kept]).to(logits.dtype)], dim=-1)
        return DynamicVocabCausalLMOutput(
            loss=loss,
            loss_parts=loss_parts,
            row_losses=row_losses,
            logits=logits,
            past_key_values=outputs.get("past_key_values"),
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
        )

    def _check_ids(self, table: PhraseTable | None, call: CausalCall) -> None:
        if table is None:
            vocab_size = num_rows(self.get_output_embeddings())
            hint = f"an id from {vocab_size} on is a phrase: give the vocabulary that has it as phrases="
            call.check_ids(vocab_size, hint)
            return
        if call.input_ids is not None:
            table.check_batch(len(call.input_ids))
        for name, ids in call.ids.items():
            if ids.device.type == "cpu" and not torch.compiler.is_compiling():  # as in `check_ids`
                table.check_ids(ids, name, None if name == "input_ids" else IGNORED)

    def _embed(self, ids: Tensor, table: PhraseTable) -> Tensor:
        tokens = self.get_input_embeddings()(ids.masked_fill(ids >= table.vocab_size, 0))
        return table.embed(ids, tokens)
