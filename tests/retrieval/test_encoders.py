"""The encoders of sentence-transformers and DPR give a text the vector that their models give it alone."""

import pytest
import torch
from transformers import BertConfig, BertModel, DPRConfig, DPRContextEncoder, DPRQuestionEncoder

from hf_targets.retrieval.collection import DocumentCollection
from hf_targets.retrieval.documents import DocumentRetriever
from hf_targets.retrieval.encoders import dpr_encoder, load_encoder
from tests.small_tokenizers import WORDS

library = pytest.importorskip("sentence_transformers")
SIZES = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 40}
DOCUMENTS = {"cats": "the cat sat on the mat", "dogs": "a dog and the cat ran", "house": "the house and the mat"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders with a tiny model of each kind, whose vectors differ visibly."""
    torch.manual_seed(0)
    folder, made = tmp_path_factory.mktemp("encoders"), {}
    kinds = {"bert": BertModel, "context": DPRContextEncoder, "question": DPRQuestionEncoder}
    for name, kind in kinds.items():
        made[name] = kind((BertConfig if name == "bert" else DPRConfig)(**SIZES)).eval()
        for weight in made[name].parameters():
            torch.nn.init.normal_(weight, std=0.5)
        made[name].save_pretrained(folder / name)
        WORDS.save_pretrained(folder / name)
    return folder, made


def pooled(model, text):
    ids = torch.tensor([WORDS.encode(text)])
    return model(input_ids=ids, attention_mask=torch.ones_like(ids)).pooler_output[0].detach()


def test_documents_and_queries_of_dpr_are_read_by_their_own_encoders(models):
    folder, made = models
    encoder, texts = dpr_encoder(folder / "context", folder / "question", device="cpu"), [*DOCUMENTS.values()]
    for vectors, name in ((encoder.encode_document(texts), "context"), (encoder.encode_query(texts), "question")):
        expected = torch.stack([pooled(made[name], text) for text in texts])
        torch.testing.assert_close(torch.tensor(vectors), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("names", [("bert",), ("context", "question")])
def test_vectors_in_bfloat16_are_those_in_float32_but_for_rounding(models, names):
    texts, folders = [*DOCUMENTS.values()], [str(models[0] / name) for name in names]
    exact, rounded = (load_encoder(*folders, dtype=dtype) for dtype in ("auto", "bfloat16"))
    assert {one.dtype for one in rounded.parameters()} == {torch.bfloat16}
    vectors = [torch.as_tensor(one.encode_document(texts)).float() for one in (exact, rounded)]
    assert torch.cosine_similarity(*vectors).min() > 0.99 and not torch.equal(*vectors)


@pytest.mark.parametrize("names", [("question", "context"), ("context", "context"), ("bert", "question")])
def test_encoders_in_the_wrong_place_are_told(models, names):
    with pytest.raises(ValueError, match="must be a DPR"):
        dpr_encoder(*(models[0] / name for name in names), device="cpu")


@pytest.mark.parametrize("kind", ["sentence transformer", "function", "dpr"])
def test_a_collection_and_a_retriever_find_the_same_by_an_encoder(models, kind, tmp_path):
    pytest.importorskip("lancedb")
    folder = models[0]

    def load():
        if kind == "dpr":
            return dpr_encoder(folder / "context", folder / "question", device="cpu")
        model = library.SentenceTransformer(str(folder / "bert"), device="cpu")
        return model.encode if kind == "function" else model

    collection = DocumentCollection.create(tmp_path / "shelf", load())
    collection.add(DOCUMENTS)
    queries = ["a dog ran", "the house"]
    again = DocumentCollection.open(tmp_path / "shelf", load()).retrieve(queries, 2)
    assert again == collection.retrieve(queries, 2)
    expected = DocumentRetriever(DOCUMENTS, load()).retrieve(queries, 2)
    assert [[name for name, _ in row] for row in again] == [[name for name, _ in row] for row in expected]
    changed = load()
    with torch.no_grad():
        for weight in getattr(changed, "__self__", changed).parameters():
            weight.mul_(1.1)
    with pytest.raises(ValueError, match="another encoder"):
        DocumentCollection.open(tmp_path / "shelf", changed)
