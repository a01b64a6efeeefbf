"""The page of answers: every link leads to a mark, which has the phrase as its document has it."""

from html.parser import HTMLParser

from hf_targets.phrases.citations import citing_phrases
from hf_targets.phrases.mining.ngrams import TokenNgrams
from hf_targets.phrases.vocabulary.sources import PhraseSource
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan
from lab.answer_page import PageAnswer, answer_page
from tests.small_tokenizers import BPE

HOSTILE = "the <script>alert('x')</script> cat & \"mat\" \x00 </details> &lt; on the mat"


class Page(HTMLParser):
    """Reads a page: its links, the text inside each element with an id, and tags that do not close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.tags, self.links, self.inside = [], [], [], {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append((tag, attributes.get("id")))
        if "href" in attributes:
            self.links.append(attributes["href"])
        if "id" in attributes:
            assert attributes["id"] not in self.inside
            self.inside[attributes["id"]] = ""

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, id_ in self.open:
            if id_ is not None:
                self.inside[id_] += data


def titled(*texts):
    return {str(number): {"title": f"<T{number}>", "text": text} for number, text in enumerate(texts, start=1)}


def of_sources(*sources):
    """An answer of one word for each source."""
    spans = [PhraseSpan(2 * n, 2 * n + 1, n, "x", (PhraseSource(*source),)) for n, source in enumerate(sources)]
    return "x " * len(sources), spans


def cited(page):
    return {link[1:]: page.inside[link[1:]] for link in page.links if "-from-" in link}


def test_each_phrase_of_a_generated_answer_leads_to_its_text_in_its_document():
    texts = [HOSTILE, "a cat sat on the mat"]
    vocabulary = citing_phrases(texts, BPE, TokenNgrams(2, 6))
    answers = []
    for ids in (list(vocabulary)[::7], list(vocabulary)[3::5]):
        answers.append(PageAnswer("Who <b>?", vocabulary.decode(ids), vocabulary.spans(ids), titled(*texts), "1 < 2"))
    page = Page(answer_page(answers))
    found = cited(page)
    assert len(found) > 8
    for id_, text in found.items():
        _, _, _, number, _, start, _, end = id_.split("-")
        assert text == texts[int(number) - 1][int(start) : int(end)].replace("\x00", "\ufffd")
    assert {link[1:] for link in page.links} <= page.inside.keys()
    assert page.tags.count("script") == page.tags.count("b") == page.tags.count("i") == 0


def test_places_that_overlap_are_marked_as_one():
    document, places = "abcdefghijklmnopqrst", [(3, 8), (0, 5), (1, 2), (8, 9), (12, 15)]
    text, spans = of_sources(*(("1", *place) for place in places))
    page = Page(answer_page([PageAnswer("?", text, spans, titled(document))]))
    expected = {(0, 8), (8, 9), (12, 15)}
    assert cited(page) == {f"answer-1-document-1-from-{start}-to-{end}": document[start:end] for start, end in expected}
    assert page.inside["answer-1"].count(document) == 1
