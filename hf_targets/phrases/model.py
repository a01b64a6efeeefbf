"""A causal language model that reads and generates phrases as single steps, around any backbone."""

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.call import Call
from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.inputs import check_tokenizer
from hf_targets.backbones.output_matrix import check_plain_output
from hf_targets.backbones.quantization import dequantized_copy, is_quantized
from hf_targets.backbones.weight_access import call_inside, execution_device, is_readable, num_rows
from hf_targets.backbones.wrapping import (
    WrapsBackbone,
    backbone_of,
    check_loading,
    load_base,
    place_new_part,
    split_fields,
)
from hf_targets.data.tokenization import tokenizer_fingerprint
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.configuration import BASE_FIELDS, DynamicVocabConfig
from hf_targets.phrases.decoding.schedule import PhraseFeed
from hf_targets.phrases.decoding.table import PhraseTable, vocabularies_of
from hf_targets.phrases.embedding_cache import PhraseEmbeddingCache, PhraseEmbeddingFiles, encoder_hash
from hf_targets.phrases.encoder import PhraseEncoder, check_causal, first_layers
from hf_targets.phrases.generation import PhraseGenerationMixin
from hf_targets.phrases.losses import PhraseBatch, interleaved_losses, phrase_loss, token_loss
from hf_targets.phrases.transplant import transplant_embeddings
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.retrieval.vector_index import VectorIndex

Phrases = PhraseVocabulary | Sequence[PhraseVocabulary] | PhraseTable | PhraseFeed


@dataclass
class DynamicVocabCausalLMOutput(CausalLMOutputWithPast):
    """The output of every call of `DynamicVocabForCausalLM`.

    Attributes:
        loss: The weighted sum of L_p, L_t and L_kl; None without labels.
        loss_parts: Its terms by name, unweighted and detached: those of `phrase`, `token` and `kl` that were computed.
        row_losses: The same terms for each row, (batch,) each, before they are summed and divided by the number of
            targets.
        logits: (batch, time, V + P): of the V tokens, then of the P phrases of the call; None if they were skipped.
    """

    loss_parts: dict[str, Tensor] | None = None
    row_losses: dict[str, Tensor] | None = None


class DynamicVocabForCausalLM(WrapsBackbone, StrictLoading, PreTrainedModel, PhraseGenerationMixin):
    """Any causal language model, over its own tokens and the phrases that are given with a call.

    A phrase is one position of the input, of the key-value cache and of the output. A phrase encoder makes its
    embedding from its tokens, and the model uses it like a row of the backbone's embeddings: equation (1). The phrases
    are an argument of the call and never change the model; without them its output is the backbone's, bit for bit.

    Args:
        config: The configuration, with the backbone's and the phrase encoder's inside.
        backbone: The model to wrap, used without a copy; None: a new one with random weights.
        encoder: A causal Transformer for the phrase encoder, used without a copy; None: a new one.
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
        self.backbone = backbone_of(cast(Any, config.backbone), backbone)
        check_plain_output(self.backbone)
        config.backbone = self.backbone.config
        if encoder is not None:
            config.phrase_encoder_width = check_causal(encoder)
        widths = self.get_input_embeddings().embedding_dim, self.get_output_embeddings().in_features
        self.phrase_encoder = PhraseEncoder(config, *widths, transformer=encoder)
        if self.phrase_encoder.transformer is not None:
            config.phrase_encoder = self.phrase_encoder.transformer.config
        self._embeddings = PhraseEmbeddingCache()
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
            base: The model to wrap, used without a copy, or its name or path.
            phrase_encoder: The causal language model whose Transformer initialises the phrase encoder, or its name or
                path. It is used without a copy, unless it is quantized. None: a copy of the base model's Transformer,
                as in the paper. A copy of a quantized one is not quantized, so that it can be trained.
            tokenizer: The base model's tokenizer. If it is given, vocabularies of other tokenizers are refused. If
                `phrase_encoder` has another tokenizer, the encoder embeds each token of the base model as the mean of
                the own tokens that spell it (`transplant_embeddings`).
            encoder_tokenizer: The tokenizer of `phrase_encoder`. Tokenizers that are needed and not given are loaded by
                the models' names. If neither is found, models with the same number of tokens are assumed to have the
                same tokens.
            backbone_kwargs: Passed to `AutoModelForCausalLM.from_pretrained` if a model is a name or a path.
            config: Fields of `DynamicVocabConfig`. If a model is a name or a path, also the `LOADING_ARGUMENTS`, such
                as `dtype`.
        Raises:
            ValueError: If a field is unknown or out of range, a model has no output embedding or is not causal, or the
                two models may have different vocabularies and a tokenizer is not found.
        """
        config, loading = split_fields(DynamicVocabConfig, {"phrase_start": "tokens", **config}, BASE_FIELDS)
        loading |= backbone_kwargs or {}
        check_loading(loading, base, phrase_encoder)
        base = load_base(base, loading)
        if isinstance(base, DynamicVocabForCausalLM):
            raise ValueError("the base model has a phrase encoder already; give its `.backbone` to add a new one")
        kind, layers = config.get("phrase_encoder_kind", "transformer"), config.get("phrase_encoder_layers")
        encoder: PreTrainedModel | None = None
        if kind == "mean":
            if phrase_encoder is not None:
                raise ValueError('phrase_encoder_kind="mean" has no Transformer; leave out phrase_encoder')
        elif phrase_encoder is None:
            if not is_readable(base) and execution_device(base).type != "meta":
                raise ValueError(
                    f"the phrase encoder begins as a copy of the base model, and weights of {type(base).__name__} are "
                    "offloaded or sharded; give phrase_encoder=, or load the base model whole"
                )
            encoder = dequantized_copy(cast(PreTrainedModel, base.base_model))
        else:
            model = load_base(phrase_encoder, loading, "phrase_encoder")
            encoder = transplant_embeddings(model, base, encoder_tokenizer, tokenizer)
            if encoder is base.base_model or is_quantized(encoder):
                encoder = dequantized_copy(encoder)  # no shared weights: these would be saved only once
        if encoder is not None and layers is not None:
            encoder = first_layers(encoder, layers)
        # Copies, because a composite configuration resets the attention implementation of its parts.
        configs = {"backbone": copy.deepcopy(base.config), "phrase_encoder": None}
        if encoder is not None:
            configs["phrase_encoder"] = copy.deepcopy(encoder.config)
        model = cls(DynamicVocabConfig(**configs, dtype=base.dtype, **config), backbone=base, encoder=encoder)
        output = model.get_output_embeddings()
        place_new_part(model, base, "phrase_encoder")
        if execution_device(output).type != "meta":
            model.phrase_encoder.fit_start(model.embed_phrases, model.get_input_embeddings(), output)
        if tokenizer is not None:
            model.config.tokenizer_fingerprint = tokenizer_fingerprint(tokenizer)
        model.generation_config = copy.deepcopy(base.generation_config)
        return model.train(base.training)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """Resize the token embeddings of the backbone and of the phrase encoder, which reads the same tokens.

        Phrase ids then begin at another number, so the model refuses phrase vocabularies that were made before. As the
        tokenizer has other tokens now, the model takes vocabularies of any tokenizer from then on.
        """
        before = num_rows(self.get_output_embeddings())
        embedding = super().resize_token_embeddings(*args, **kwargs)
        if num_rows(self.get_output_embeddings()) != before:
            self.config.tokenizer_fingerprint = None
        if (args or kwargs) and self.phrase_encoder.transformer is not None:
            self.phrase_encoder.transformer.resize_token_embeddings(*args, **kwargs)
        return embedding

    def phrase_table(self, phrases: Phrases, counts: Sequence[int] | None = None) -> PhraseTable:
        """Return the table of phrases, which can be given as `phrases` to several calls.

        The model caches the embeddings by the phrases' tokens, until the encoder changes.

        Args:
            phrases: One vocabulary for all rows of a batch, or one for each row; a table is returned unchanged.
            counts: The number of available slots of each vocabulary, from the first on; None: all.
        Raises:
            ValueError: If a vocabulary does not have the model's number of tokens or its tokenizer, or a phrase was
                removed since a table was made.
        """
        if isinstance(phrases, PhraseTable):
            phrases.check_current(self.phrase_encoder.widths[0])
            self._check_sizes(phrases.vocabularies)
            return phrases
        vocabularies = vocabularies_of(phrases)
        self._check_vocabularies(vocabularies)
        return self._embeddings.table(self, vocabularies, counts)

    def embed_phrases(self, windows: Tensor, phrase_windows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input and output embeddings of phrases; `PhraseEncoder.forward` gives the shapes."""
        config, tokens = cast(DynamicVocabConfig, self.config), []
        if config.reads_tokens:
            tokens.append(self.get_input_embeddings()(windows))
        if config.phrase_start == "tokens":
            tokens.append(call_inside(self.get_output_embeddings(), _rows_and_bias, windows[:, 0]))
        return self.phrase_encoder(windows, phrase_windows, *tokens)

    def phrase_parts(self) -> nn.ModuleList:
        """Return the modules that embed phrases; if peft has a copy of the encoder, the parts of the copy in use."""
        encoder = self.phrase_encoder
        parts: list[Any] = [encoder.transformer, encoder.input_projection, encoder.output_projection]
        if cast(DynamicVocabConfig, self.config).reads_tokens:
            parts += [self.get_input_embeddings(), self.get_output_embeddings()]
        return nn.ModuleList([part for part in parts if part is not None])

    def _check_vocabularies(self, vocabularies: Sequence[PhraseVocabulary]) -> None:
        """Check that vocabularies have the model's number of tokens and its tokenizer."""
        expected = cast(DynamicVocabConfig, self.config).tokenizer_fingerprint or vocabularies[0].fingerprint
        for vocabulary in vocabularies:
            if vocabulary.fingerprint != expected:
                raise ValueError(
                    "a vocabulary must have the tokenizer of the model and of the other rows; make it with that one, "
                    "or set model.config.tokenizer_fingerprint to None if the tokenizer has got tokens since"
                )
        self._check_sizes(vocabularies)
        check_tokenizer(self, vocabularies[0].tokenizer)

    def _check_sizes(self, vocabularies: Sequence[PhraseVocabulary]) -> None:
        vocab_size = num_rows(self.get_output_embeddings())
        for vocabulary in vocabularies:
            if vocabulary.vocab_size != vocab_size:
                raise ValueError(
                    f"phrase ids must begin at {vocab_size}, the number of the model's tokens, got "
                    f"{vocabulary.vocab_size}; make the vocabulary with vocab_size={vocab_size}"
                )

    def keep_phrase_embeddings(self, folder: str | PathLike | None, *, max_bytes: int = 4 * 2**30) -> None:
        """Keep the embeddings of phrases in a folder, so that no later process has to encode the same phrases again.

        There is a file for each document and state of the encoder, so that one folder may serve several models and
        processes; none with a schedule or a feed. The folder is a setting of this object and not saved with it.

        Args:
            folder: The folder, made if it is missing; None: in memory, and phrases of a `DocumentCollection` in its
                folder, as at the beginning.
            max_bytes: The largest size of all files in the folder; the oldest files are removed.
        """
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
        self._embeddings.clear()  # what is in memory is in no file
        self._embeddings.files = None if folder is None else PhraseEmbeddingFiles(folder, max_bytes)

    def index_phrases(
        self, vocabulary: PhraseVocabulary, build: Callable[..., Any] = VectorIndex.build, **settings: Any
    ) -> Any:
        """Return an index of a vocabulary's phrases, for the argument `phrase_index` of `generate`.

        Number s of the index is slot s of the vocabulary, the phrase with the id V + s.

        Args:
            build: Of the engine that is to search: `VectorIndex.build` for one in memory, `DiskIndex.build`,
                `LanceIndex.build` or `QdrantIndex.build`.
            settings: Arguments of `build`.
        """
        with torch.no_grad():
            rows = self.phrase_table(vocabulary).output_rows
        return build(rows, fingerprint=self.phrase_fingerprint(vocabulary), **settings)

    def phrase_fingerprint(self, vocabulary: PhraseVocabulary) -> dict[str, str]:
        """Return digests of the encoder and of the phrases, by which `load` of an index checks it."""
        ids, offsets, alive = vocabulary.arrays()
        phrases = hashlib.sha256(ids.tobytes() + offsets.tobytes() + alive.tobytes()).hexdigest()
        return {"phrase encoder": encoder_hash(self), "phrases": phrases}

    @can_return_tuple
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
        **kwargs: Any,
    ) -> DynamicVocabCausalLMOutput:
        """Compute the loss and the logits.

        With the fields of a `PhraseBatch`, which `PhraseCollator` makes, the loss is the weighted sum of L_p, L_t and
        L_kl. With only labels, it is the loss of the given sequence over tokens, or over tokens and `phrases`.

        Args:
            input_ids: (batch, time), token ids, and phrase ids from V on.
            attention_mask: (batch, time), 0 at padding on either side.
            position_ids: (batch, time); in packed rows they start again at 0 with each document.
            labels: (batch, time), unshifted token ids, and phrase ids from V on; -100 is not a target.
            token_type_ids: (batch, time), for a backbone that uses them.
            phrases: One vocabulary for all rows, one for each row, or a table made by `phrase_table`.
            num_items_in_batch: The number by which each part of the loss is divided; None: the number of targets.
            logits_to_keep: The number of last positions, or the indices of the positions, with logits; 0: all.
            skip_logits: Whether to skip the logits; None: skip them in training with labels.
            kwargs: The fields of a `PhraseBatch`, and `shift_labels`, (batch, time): labels that are already shifted,
                with the target of each position at its own index. They take precedence over `labels`. All others are
                passed to the backbone.
        Raises:
            ValueError: If an argument has a wrong shape, an id is neither a token nor a phrase of its row, or a
                `PhraseBatch` is incomplete or combined with `phrases` or `token_type_ids`.
        """
        batch = PhraseBatch.taken_from(kwargs)
        if phrases is not None and batch is not None:
            raise ValueError("a training batch brings its own phrases; leave out phrases, or all phrase fields")
        if token_type_ids is not None and batch is not None:
            raise ValueError("token_type_ids are not supported with a PhraseCollator batch; leave out token_type_ids")
        call = Call.causal(
            kwargs,
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
        self._check_ids(table, call, expanded=isinstance(phrases, PhraseTable))
        embeds = None if table is None or input_ids is None else self._embed(input_ids, table)
        outputs = call.read(self.backbone, embeds)
        hidden: Tensor = outputs[0]
        output, targets = self.get_output_embeddings(), call.targets

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
                parts |= interleaved_losses(self, hidden, call, batch)
                weights = {name: getattr(self.config, f"{name}_loss_weight") for name in parts}
            # The paper does not say by what L_p is divided. Here it is the number of tokens of the text, so that L_p, a
            # sum over fewer and longer steps, is in nats per token like L_t. L_kl has its own 1/m.
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

    def _check_ids(self, table: PhraseTable | None, call: Call, *, expanded: bool) -> None:
        if table is None:
            vocab_size = num_rows(self.get_output_embeddings())
            hint = f"an id from {vocab_size} on is a phrase: give its vocabulary with phrases="
            call.check_ids(vocab_size, hint)
            return
        if call.tokens is not None:
            table.check_batch(len(call.tokens), expanded=expanded)
        for name, ids in call.ids.items():
            if ids.device.type == "cpu" and not torch.compiler.is_compiling():  # as in `check_ids`
                table.check_ids(ids, name, None if name == "input_ids" else IGNORED)

    def _embed(self, ids: Tensor, table: PhraseTable) -> Tensor:
        tokens = self.get_input_embeddings()(ids.masked_fill(ids >= table.vocab_size, 0))
        return table.embed(ids, tokens)


def _rows_and_bias(weight: Tensor, bias: Tensor | None, ids: Tensor) -> Tensor:
    """Return the rows of an output matrix for token ids, each with its bias as the last column."""
    column = weight.new_zeros(*ids.shape, 1) if bias is None else bias[ids][:, None].to(weight.dtype)
    return torch.cat([weight[ids], column], dim=-1)
