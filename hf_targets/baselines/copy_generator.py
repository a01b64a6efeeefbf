"""CoG, "Copy is all you need": a causal model that copies phrases of documents, by the states of an encoder of them."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import field
from os import PathLike
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModel, Cache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.alignment import next_targets
from hf_targets.backbones.call import Call
from hf_targets.backbones.causal_head import CausalHeadOutput
from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.configuration import AnswersForBackbone, NamesItsPackage, SubConfigSpec, check_fields
from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.inputs import check_range
from hf_targets.backbones.output_matrix import check_plain_output
from hf_targets.backbones.positions import max_positions
from hf_targets.backbones.weight_access import call_inside, execution_device, num_rows
from hf_targets.backbones.wrapping import WrapsBackbone, backbone_of, check_loading, load_base, place_new_part
from hf_targets.baselines.copy_documents import encode_documents, join_pieces, windows_of
from hf_targets.baselines.copy_generation import CopyGenerationMixin
from hf_targets.data.tokenization import tokenizer_fingerprint
from hf_targets.maths.dynamic_losses import dynamic_cross_entropy
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.decoding.table import PhraseTable
from hf_targets.phrases.losses import token_loss
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.retrieval.documents import check_documents

_PIECES_AT_ONCE = 16


class CopyGeneratorConfig(NamesItsPackage, AnswersForBackbone, PreTrainedConfig):
    """Configuration of `CopyGenerator`: of the backbone, and of the encoder that reads documents."""

    model_type = "copy_generator"
    keys_to_ignore_at_inference = ["past_key_values", "loss_parts", "hidden_states"]  # noqa: RUF012, as the base class
    sub_configs_defaults = {  # noqa: RUF012, the base class declares it
        "backbone": SubConfigSpec(config_class=AutoConfig, model_type="gpt2"),
        "encoder": SubConfigSpec(config_class=AutoConfig, model_type="bert"),
    }

    backbone: dict | PreTrainedConfig | None = field(default=None, metadata={"help": "Of the wrapped model."})
    encoder: dict | PreTrainedConfig | None = field(default=None, metadata={"help": "Of the encoder."})
    tokenizers: list = field(default_factory=list, metadata={"help": "Fingerprints of both models' tokenizers."})

    def __post_init__(self, **kwargs: Any) -> None:
        check_fields(self)
        super().__post_init__(**kwargs)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """Return the backbone's configuration."""
        return cast(PreTrainedConfig, self.backbone).get_text_config(decoder=decoder, encoder=encoder)


class DocumentEncoder(nn.Module):
    """A bidirectional Transformer, and projections of a token's state, as the start of a phrase and as its end.

    Starts have d // 2 of the d columns of the backbone's output matrix, and ends the others.
    """

    def __init__(self, transformer: PreTrainedModel, width: int) -> None:
        super().__init__()
        self.transformer, dropout = transformer, getattr(transformer.config, "hidden_dropout_prob", 0.1)
        layers = [nn.Linear(transformer.config.hidden_size, part) for part in (width // 2, width - width // 2)]
        self.start, self.end = (nn.Sequential(nn.Dropout(dropout), nn.Tanh(), layer) for layer in layers)

    def forward(self, ids: Tensor, mask: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return starts (N, d // 2) and ends (N, d - d // 2) of the tokens at N places of pieces (pieces, length)."""
        check_range(ids, num_rows(self.transformer.get_input_embeddings()), "tokens of documents must be")
        if ids.shape[1] > (limit := max_positions(self.transformer.config) or ids.shape[1]):
            raise ValueError(
                f"the encoder has {limit} positions, got {ids.shape[1]}; set its tokenizer's model_max_length"
            )
        some = zip(ids.split(_PIECES_AT_ONCE), mask.split(_PIECES_AT_ONCE), strict=True)
        states = torch.cat([self.transformer(input_ids=one, attention_mask=of_one)[0] for one, of_one in some])
        states = states.flatten(0, 1)[places]
        return self.start(states), self.end(states)


class CopyGenerator(WrapsBackbone, StrictLoading, PreTrainedModel, CopyGenerationMixin):
    """Any causal language model that writes its tokens, and copies runs of 2 to 8 tokens of documents.

    An encoder reads the documents. A phrase from token i to token j of a document has the row concat(start_i, end_j)
    beside those of the output matrix, where start and end are projections of the encoder's states. A chosen phrase is
    read as its tokens. Without documents the output is the backbone's, bit for bit.

    Args:
        config: The configuration, with the backbone's and the encoder's inside.
        backbone, encoder: Used without a copy; None: new ones. A pooling layer of the encoder is removed.
    Raises:
        ValueError: If the backbone's logits are not its output embedding applied to its last hidden states.
    Source: Lan et al. 2023, "Copy is All You Need".
    """

    config_class = CopyGeneratorConfig
    new_part = "document_encoder"
    trained_by = "the plain Trainer with the CopyCollator"

    def __init__(
        self,
        config: CopyGeneratorConfig,
        backbone: PreTrainedModel | None = None,
        encoder: PreTrainedModel | None = None,
    ) -> None:
        super().__init__(config)
        self.backbone = backbone_of(cast(Any, config.backbone), backbone)
        check_plain_output(self.backbone)
        encoder = backbone_of(cast(Any, config.encoder), encoder, AutoModel)
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = cast(Any, None)  # no loss trains it
        config.backbone, config.encoder = self.backbone.config, encoder.config
        width = self.get_output_embeddings().in_features
        self.document_encoder = DocumentEncoder(encoder, width)
        self.post_init()

    @classmethod
    def from_base(
        cls,
        base: PreTrainedModel | str | PathLike,
        encoder: PreTrainedModel | str | PathLike,
        *,
        tokenizer: PreTrainedTokenizerBase,
        encoder_tokenizer: PreTrainedTokenizerBase,
        **loading: Any,
    ) -> Self:
        """Give a causal language model an encoder of documents.

        All phrases begin with the mean logit of all tokens, so that together they are improbable.

        Args:
            base: The model to wrap, used without a copy, or its name or path.
            encoder: A bidirectional Transformer, such as "bert-base-cased" or all-MiniLM-L6-v2, likewise.
            tokenizer, encoder_tokenizer: Of both. Other ones are refused later.
            loading: Arguments of `from_pretrained`, such as `dtype`, where a model is a name or a path.
        Raises:
            ValueError: As the class, or if the arguments do not fit.
        """
        check_loading(loading, base, encoder)
        base = load_base(base, loading)
        reader = load_base(encoder, loading, "encoder", auto_class=AutoModel)
        config = CopyGeneratorConfig(
            backbone=copy.deepcopy(base.config),
            encoder=copy.deepcopy(reader.config),
            tokenizers=[tokenizer_fingerprint(one) for one in (tokenizer, encoder_tokenizer)],
            dtype=base.dtype,
        )
        model = cls(config, backbone=base, encoder=reader)
        place_new_part(model, base, cls.new_part)
        # Departs: theirs begin as torch's layers do, which takes most of the probability from a trained model's tokens.
        mean = call_inside(model.get_output_embeddings(), lambda weight, _: weight.detach().float().mean(dim=0))
        layers: list[Any] = [model.document_encoder.start[-1], model.document_encoder.end[-1]]
        for layer, part in zip(layers, mean.split([layer.out_features for layer in layers]), strict=True):
            layer.weight.data.zero_()
            layer.bias.data.copy_(part)
        model.generation_config = copy.deepcopy(base.generation_config)
        return model.train(base.training)

    @torch.no_grad()
    def read_documents(
        self,
        documents: Mapping[str, str] | Sequence[Mapping[str, str]],
        tokenizer: PreTrainedTokenizerBase,
        encoder_tokenizer: PreTrainedTokenizerBase,
        *,
        max_tokens: int = 8,
    ) -> PhraseTable:
        """Return all windows of 2 to `max_tokens` tokens of documents, for `generate`.

        The encoder reads the documents now; read them again once it was trained. A window that stands several times has
        the states of its first occurrence, and all as its sources. Windows begin and end with tokens of the encoder.

        Args:
            documents: Texts by name, for all rows of a batch, or such a mapping for each row.
            tokenizer, encoder_tokenizer: Fast tokenizers of the backbone and of the encoder.
            max_tokens: 2 or more.
        Raises:
            ValueError: If a tokenizer is another one than that of `from_base`, or the documents have no window.
        """
        for own, one in zip(self.config.tokenizers, (tokenizer, encoder_tokenizer), strict=False):
            if own != tokenizer_fingerprint(one):
                raise ValueError(f"documents need the tokenizers of from_base, and {one.name_or_path!r} is another")
        rows: list[Any] = [documents] if isinstance(documents, Mapping) else list(documents)
        for row in rows:
            check_documents(row)
        texts = list(dict.fromkeys(text for row in rows for text in row.values()))
        read = encode_documents(texts, tokenizer, encoder_tokenizer)
        pieces, edges = join_pieces(read, encoder_tokenizer)
        parts = {text: (one.text, own) for text, one, own in zip(texts, read, edges, strict=True)}
        vocabularies, ends = [], []
        for row in rows:
            found = windows_of(((name, *parts[text]) for name, text in row.items()), max_tokens)
            if not found:
                raise ValueError(f"documents must have two tokens in a row to copy, and {[*row]!r:.60} have none")
            vocabulary = PhraseVocabulary(tokenizer, vocab_size=num_rows(self.get_output_embeddings()))
            vocabulary.add_token_ids(found, sources=[[one.source for one in places] for places in found.values()])
            vocabularies.append(vocabulary)
            ends.append(torch.tensor([places[0][:2] for places in found.values()]))
        device = execution_device(self.document_encoder)
        with without_dropout(self.document_encoder):
            states = self.document_encoder(**{name: pieces[name].to(device) for name in ("ids", "mask", "places")})
        first, last = torch.cat(ends).T.to(device)
        outputs = torch.cat([states[0][first], states[1][last]], dim=1)
        numbers = torch.arange(len(outputs), device=device).split([len(one) for one in ends])
        slots = pad_sequence(list(numbers), batch_first=True, padding_value=-1)
        return PhraseTable(vocabularies, outputs, outputs, slots.clamp(min=0), slots >= 0)

    def phrase_table(self, phrases: PhraseTable, counts: Any = None) -> PhraseTable:
        """Return the table, if it is one of a model with this vocabulary."""
        size = num_rows(self.get_output_embeddings())
        if not isinstance(phrases, PhraseTable) or phrases.vocab_size != size:
            raise ValueError(f"documents must be what read_documents of this model returns, got {phrases!r:.60}")
        return phrases

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
        sources: Mapping[str, Tensor] | None = None,
        token_type_ids: Tensor | None = None,
        phrases: PhraseTable | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        **kwargs: Any,
    ) -> CausalHeadOutput:
        """Compute the loss and the logits.

        With sources the loss is the sum of three parts: `token`, the usual one; `start`, of the first halves of hidden
        states over the first halves of the output matrix's rows and N starts; and `end`, of the others. Where a phrase
        is the target, the starts and ends of other documents are left out.

        Args:
            sources: Of a `CopyCollator`: `ids`, `mask`, `places` and `owners` of documents (`join_pieces`); `starts`
                and `ends`, (batch, time): at the first token of a phrase the numbers in [0, N) of the documents' tokens
                at which it starts and ends; -1 elsewhere.
            phrases: Of `read_documents`; its P logits follow those of V tokens.
            kwargs: And all others: as for `DynamicVocabForCausalLM`.
        Raises:
            ValueError: If shapes do not fit, or an id is out of range.
        Source: gmftbyGMFTBY/Copyisallyouneed, models/copyisallyouneed.py, at its temperature 1.
        """
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
        output, loss, parts, logits = self.get_output_embeddings(), None, None, None
        call.check_ids(num_rows(output))
        outputs = call.read(self.backbone)
        hidden: Tensor = outputs[0]
        if (targets := call.targets) is not None:
            parts = {"token": token_loss(hidden, targets, output)}
            if sources is not None:
                parts |= self._edge_losses(hidden, targets, sources, attention_mask)
            count = call.count(targets)
            loss = torch.stack([part.sum() / count for part in parts.values()]).sum()
            parts = {name: (part.sum() / count).detach() for name, part in parts.items()}
        if call.wants_logits(skip_logits, training=self.training):
            logits = output(hidden[:, call.kept])
            if phrases is not None:
                logits = torch.cat([logits, phrases.logits(hidden[:, call.kept]).to(logits.dtype)], dim=-1)
        others: Any = {name: outputs.get(name) for name in ("past_key_values", "hidden_states", "attentions")}
        return CausalHeadOutput(loss=loss, loss_parts=parts, logits=logits, **others)

    def _edge_losses(
        self, hidden: Tensor, targets: Tensor, sources: Mapping[str, Tensor], attention_mask: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the losses of starts and of ends at each position, (batch * time,) each."""
        output, owners, parts = self.get_output_embeddings(), sources["owners"], {}
        vocab_size, width, targets = num_rows(output), hidden.shape[-1] // 2, targets.flatten()
        states = hidden.new_zeros(2, 0, 1)
        if len(owners):
            states = self.document_encoder(sources["ids"], sources["mask"], sources["places"])
        for name, half, of_documents in zip(("start", "end"), (slice(width), slice(width, None)), states, strict=True):
            numbers = next_targets(sources[f"{name}s"], attention_mask).flatten()
            is_phrase, numbers = (numbers >= 0) & (targets != IGNORED), numbers.clamp(min=0)
            check_range(numbers, max(1, len(owners)), f"{name}s must be tokens of the documents,")
            other = is_phrase[:, None] & (owners != owners[numbers][:, None]) if len(owners) else None
            chosen = torch.where(is_phrase, vocab_size + numbers, targets)
            given = (hidden[..., half].flatten(0, 1), of_documents, chosen, other, half)
            parts[name] = call_inside(output, _edge_loss, *given)
        return parts


def _edge_loss(weight: Tensor, bias: Tensor | None, hidden: Tensor, states: Tensor, *given: Any) -> Tensor:
    targets, excluded, half = given
    bias = None if bias is None else bias / 2  # a logit is the sum of both halves
    return dynamic_cross_entropy(hidden, weight[:, half], states, targets, bias, excluded=excluded)
