"""A tiny model that answers a question from a text, as the recipes ask it, and a tiny encoder."""

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from lab.passages import ASKED
from tests.small_tokenizers import BPE, WORDS

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TEXT, QUESTION = "The flat cat sat on the mat of a dog.", "Where is the cat?"


def write_models(folder):
    """A tiny model that answers the question with the text, with a chat template, and a tiny encoder."""
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(BPE), n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=None)
    )
    asked = f"[1] {TEXT}\n\n{ASKED.format(QUESTION)}"
    rows = torch.tensor([BPE.encode(f"{asked} {TEXT}\n{TEXT}\n")])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(80):
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "hidden_size": 16}
    for name, made in {"writer": model, "encoder": BertModel(BertConfig(vocab_size=len(WORDS), **small))}.items():
        made.save_pretrained(folder / name)
        (BPE if name == "writer" else WORDS).save_pretrained(folder / name)
    (folder / "writer" / "chat_template.jinja").write_text(TEMPLATE)
