"""Blind pairs of texts for annotators: a page to judge on, the answers that it saves, and their shares (table 2)."""

import csv
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_targets.figures.page_style import page
from lab.pairwise import ASPECTS, Preferences
from lab.results import write_json

QUESTIONS = ("overall", *ASPECTS)
KEY_NAME, PAGE_NAME = "key.json", "pairs.html"
_SCRIPT = """<p>Two texts go on with the same beginning. Which is better? Answer for each pair and each aspect; answers
stay in this browser until you save them.</p>
<p><label>Your name <input id="who" size="20"></label> <button id="save">Save answers</button>
<span id="left"></span></p>
<div id="pairs"></div>
<script>
const pairs = PAIRS, questions = QUESTIONS, place = "answers " + PLACE;
const answers = JSON.parse(localStorage.getItem(place) || "{}");
const add = (parent, tag, text = "") => {
  const one = parent.appendChild(document.createElement(tag)); one.textContent = text; return one;
};
const count = () => document.getElementById("left").textContent =
  `${Object.keys(answers).length} of ${pairs.length * questions.length} answered`;
pairs.forEach((pair, number) => {
  const box = add(document.getElementById("pairs"), "section");
  add(box, "h2", `${number + 1}`);
  add(box, "p", pair.prefix).className = "text prompt";
  for (const side of ["1", "2"]) { add(box, "b", side); add(box, "p", pair[side]).className = "text"; }
  for (const question of questions) {
    const line = add(box, "div", question + ": ");
    for (const [value, text] of [["1", "1 is better"], ["none", "no preference"], ["2", "2 is better"]]) {
      const label = add(line, "label"), button = add(label, "input");
      const name = `${pair.pair} ${question}`;
      Object.assign(button, {type: "radio", name, value, checked: answers[name] === value});
      button.onchange = () => {
        answers[name] = value; localStorage.setItem(place, JSON.stringify(answers)); count();
      };
      label.append(text + " ");
    }
  }
});
count();
document.getElementById("save").onclick = () => {
  const who = document.getElementById("who").value.replace(/[^\\w-]/g, "") || "annotator";
  const rows = Object.entries(answers).map(([name, value]) => [...name.split(" "), value].join(","));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([["pair,question,answer", ...rows].join("\\n") + "\\n"]));
  link.download = `${who}.csv`; link.click();
};
</script>"""


def write_pairs(
    folder: str | Path, prefixes: Sequence[str], texts: Mapping[str, Sequence[str]], *, limit: int = 100, seed: int = 0
) -> None:
    """Write `pairs.html`, on which two models' texts stand in random places, and `key.json`, which names the places.

    Args:
        texts: By model, one for each prefix. The last model is compared with each other one.
        limit: Pairs for each comparison, drawn at random; the paper has 100.
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 3.2, human evaluation.
    """
    draw, pairs, key = random.Random(seed), [], {}
    *others, ours = texts
    for other in others:
        for number in draw.sample(range(len(prefixes)), min(limit, len(prefixes))):
            name, first = f"p{len(key) + 1}", draw.choice([ours, other])
            second = other if first == ours else ours
            key[name] = {"model": ours, "other": other, "first": first}
            shown = {"1": texts[first][number], "2": texts[second][number]}
            pairs.append({"pair": name, "prefix": prefixes[number], **shown})
    draw.shuffle(pairs)
    body = _SCRIPT
    for name, value in {"PLACE": f"{ours} {seed}", "QUESTIONS": QUESTIONS, "PAIRS": pairs}.items():
        body = body.replace(name, json.dumps(value).replace("<", "\\u003c"), 1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_json(Path(folder) / KEY_NAME, key)
    (Path(folder) / PAGE_NAME).write_text(page("Which text is better?", body), encoding="utf-8")


def shares(folder: str | Path) -> dict[str, dict[str, Preferences]]:
    """Return by comparison and question the shares of pairs in which the last model's text is better, or worse.

    The answers are the CSV files in the folder, one of each annotator. Where annotators differ the majority counts, and
    no preference if there is none: the paper's annotators talk until they agree.

    Raises:
        ValueError: If there are no answers, or one is about a pair or a question that the key does not have.
    """
    key: Any = json.loads((Path(folder) / KEY_NAME).read_text(encoding="utf-8"))
    votes: dict[tuple[str, str], list[int]] = {}
    for file in sorted(Path(folder).glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                pair, question, answer = row["pair"], row["question"], row["answer"]
                if pair not in key or question not in QUESTIONS or answer not in ("1", "2", "none"):
                    raise ValueError(f"{file} answers {answer!r} to {question!r} of {pair!r}, which is not asked")
                is_first = key[pair]["first"] == key[pair]["model"]
                sign = 0 if answer == "none" else 1 if (answer == "1") == is_first else -1
                votes.setdefault((pair, question), []).append(sign)
    if not votes:
        raise ValueError(f"{folder} has no answers; judge on {PAGE_NAME}, and put the saved CSV files beside it")
    counted: dict[str, dict[str, list[int]]] = {}
    for (pair, question), signs in votes.items():
        name = f"{key[pair]['model']} against {key[pair]['other']}"
        total = sum(signs)
        counted.setdefault(name, {}).setdefault(question, []).append((total > 0) - (total < 0))
    return {
        name: {
            question: Preferences(*(found.count(sign) / len(found) for sign in (1, 0, -1)))
            for question in QUESTIONS
            if (found := by_question.get(question))
        }
        for name, by_question in counted.items()
    }
