"""What annotators prefer is counted for the model that wrote it, wherever its text stood."""

import csv
import json
import re

from lab.pairwise import PAGE_NAME, QUESTIONS, shares, write_pairs

PREFIXES = [f"beginning {number}" for number in range(12)]
TEXTS = {name: [f"{name} {number} </script><b>" for number in range(12)] for name in ("plain", "other", "ours")}


def pairs_on(folder) -> list[dict[str, str]]:
    page = (folder / PAGE_NAME).read_text(encoding="utf-8")
    assert page.count("</script>") == 1  # no text ends it
    return json.loads(re.search(r"const pairs = (\[.*?\]), questions", page, re.S)[1])


def answer(folder, name: str, choose) -> None:
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["pair", "question", "answer"])
        lines.writerows([pair["pair"], question, choose(pair)] for pair in pairs_on(folder) for question in QUESTIONS)


def prefers_ours(pair: dict[str, str]) -> str:
    return "1" if pair["1"].startswith("ours") else "2"


def test_the_one_who_likes_our_texts_gives_us_all_and_the_majority_counts(tmp_path):
    write_pairs(tmp_path, PREFIXES, TEXTS)
    pairs = pairs_on(tmp_path)
    assert len(pairs) == 24 and len({prefers_ours(pair) for pair in pairs}) == 2
    assert not {"first", "model"} & {name for pair in pairs for name in pair}
    for pair in pairs:
        number = pair["prefix"].split()[1]
        assert {pair["1"].split()[0], pair["2"].split()[0]} in ({"ours", "plain"}, {"ours", "other"})
        assert all(pair[side].split()[1] == number for side in "12")
    answer(tmp_path, "ann", prefers_ours)
    assert set(shares(tmp_path)) == {"ours against plain", "ours against other"}
    assert all(one.better == 1 for by_question in shares(tmp_path).values() for one in by_question.values())
    answer(tmp_path, "bob", lambda pair: "2" if prefers_ours(pair) == "1" else "1")
    assert {one.none for by_question in shares(tmp_path).values() for one in by_question.values()} == {1}
    answer(tmp_path, "eve", prefers_ours)
    assert shares(tmp_path)["ours against plain"]["grammar"].better == 1
