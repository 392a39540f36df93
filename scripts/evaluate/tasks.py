#!/usr/bin/env python3
"""Measures what retention costs on tasks that need something far back in the prompt, made from a seed.

    scripts/evaluate/tasks.py --model models/smollm2 [--rules full h2o:0.1:0.1 ...] [--items 100] [--tokens 2000] [--seed 1]
                     [--question last|first] [--tasks NAME ...] [--output FILE.md] [--budgets 0.5 0.2 0.1 0.05]
                     [--picture FILE.svg] [--answers FILE.json] [-- FLAGS OF WEFT ...]

  needle      one sentence with a number is hidden in a book; the number is asked for
  needles     eight such sentences; one number is asked for
  variables   assignments in a chain are hidden in a book; the names that hold a number are asked for
  common      ten words come often among words that come seldom; the ten are asked for
  frequent    words come as often as a power law says; the first three are asked for
  copying     a list of words is hidden in a book and begun again; its next words are asked for
  labels      examples of four kinds of words; the kind of one more is asked for

The first five follow RULER's definitions (arXiv 2404.06654) in other words. The score of an item is the share of what was
asked for that stands in the answer. The error is that of the mean of the paired differences to the first rule. A prompt
with `--question first` has its question before the context too, in full, and after it only what the answer begins with.
A RULE may end with @ and a --kv-dtype: h2o:0.05:0.05:cold=1.0@int8:4:2. A rule with factors in braces, such as
h2o:{0.5}:{0.5}, is measured at each of --budgets and compared with the first rule at the same budget. --picture draws
the rules over the budgets, --answers keeps the scores for later calls.
Needs only Python's standard library and weft.
"""

import argparse
import json
import lzma
import math
import pathlib
import random
import subprocess
import tempfile

import curves

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHARACTERS = 4.2  # of a token, about
PLACES = """Lisbon Vienna Oslo Dublin Athens Warsaw Prague Madrid Berlin Paris Rome London Cairo Lima Quito Havana Boston
Denver Austin Seattle Geneva Zurich Milan Naples Turin Genoa Kyoto Osaka Seoul Delhi Mumbai Tunis""".split()
WORDS = """apple river stone candle garden winter mirror bottle castle thunder pencil ribbon harbor meadow engine button
carpet feather hammer island jacket kettle ladder marble needle orange pepper quarry rocket saddle temple violin window
basket copper desert falcon goblet helmet insect jungle kitten lantern magnet nephew oyster pillow rabbit silver tunnel
velvet wagon yellow anchor beacon cactus dragon ember forest glacier honey iron jewel knight lemon mango nectar olive
parrot quilt raven shadow timber umbrella valley walnut""".split()
KINDS = {
    "animal": "dog cat horse cow sheep goat lion tiger bear wolf fox rabbit mouse elephant monkey snake".split(),
    "fruit": "apple banana orange grape lemon peach pear cherry plum mango melon lime apricot fig kiwi berry".split(),
    "color": "red blue green yellow purple orange brown black white pink gray violet gold silver beige teal".split(),
    "country": "France Spain Italy Germany Japan China India Brazil Canada Mexico Egypt Kenya Peru Chile Norway Greece".split(),
}


class Book:
    """Sentences of a text, to hide things in."""

    def __init__(self, path):
        text = lzma.open(path, "rt").read() if path.suffix == ".xz" else path.read_text()
        self.sentences = [part.strip() + "." for part in text.replace("\n", " ").split(". ") if 20 < len(part) < 300]

    def hide(self, pick, hidden, characters):
        """About so many characters of the book, but a sentence for each of `hidden` at least, with each of `hidden` somewhere,
        in their order."""
        begin, lines, size = pick.randrange(len(self.sentences) // 2), [], sum(map(len, hidden))
        while size < characters or len(lines) < len(hidden):
            lines.append(self.sentences[(begin + len(lines)) % len(self.sentences)])
            size += len(lines[-1]) + 1
        for place, line in reversed(list(zip(sorted(pick.sample(range(len(lines)), len(hidden))), hidden))):
            lines.insert(place, line)
        return " ".join(lines)


def numbers(pick, count):
    return [str(number) for number in pick.sample(range(1_000_000, 10_000_000), count)]


def needles(pick, book, characters, count):
    places = pick.sample(PLACES, count)
    secrets = dict(zip(places, numbers(pick, count)))
    lines = [f"The secret number of {place} is {number}." for place, number in secrets.items()]
    place = pick.choice(places)
    return (book.hide(pick, lines, characters), f"What is the secret number of {place}?", f"The secret number of {place} is",
            [secrets[place]])


def needle(pick, book, characters):
    return needles(pick, book, characters, 1)


def many_needles(pick, book, characters):
    return needles(pick, book, characters, 8)


def variables(pick, book, characters):
    names = pick.sample([a + b for a in "ABCDEFGH" for b in "KLMNPQRS"], 8)
    values = numbers(pick, 2)
    chains = [names[:4], names[4:]]
    lines = []
    for chain, value in zip(chains, values):
        lines.append([f"Let {chain[0]} be {value}."] + [f"Let {b} be {a}." for a, b in zip(chain, chain[1:])])
    mixed = [line for pair in zip(*lines) for line in pair]
    return (book.hide(pick, mixed, characters), f"Which four names hold the number {values[0]}?",
            f"The four names that hold the number {values[0]} are", chains[0])


def counted_words(pick, counts, question, begin, wanted):
    lines = [word for word, count in counts.items() for _ in range(count)]
    pick.shuffle(lines)
    return " ".join(lines), question, begin, wanted


def common(pick, book, characters):
    words = pick.sample(WORDS, 50)
    scale = characters / CHARACTERS / 1.4 / (10 * 10 + 40)
    counts = {word: max(1, round(scale * (10 if i < 10 else 1))) for i, word in enumerate(words)}
    return counted_words(pick, counts, "Which ten words come most often in the list above?",
                         "The ten words that come most often are:", words[:10])


def frequent(pick, book, characters):
    words = pick.sample(WORDS, 30)
    total = sum(i ** -1.5 for i in range(1, 31))
    counts = {word: max(1, round(characters / CHARACTERS / 1.4 * i ** -1.5 / total)) for i, word in enumerate(words, 1)}
    return counted_words(pick, counts, "Which three words come most often in the list above?",
                         "The three words that come most often are:", words[:3])


def copying(pick, book, characters):
    words = pick.sample(WORDS, len(WORDS))
    cut = pick.randrange(10, len(words) - 4)
    around = book.hide(pick, ["The list is: " + " ".join(words) + "."], characters)
    return around, "Write the list again.", "The list is: " + " ".join(words[:cut]), [" ".join(words[cut:cut + 4])]


def labels(pick, book, characters):
    pairs = [(word, kind) for kind, words in KINDS.items() for word in words if word not in ("orange",)]
    pick.shuffle(pairs)
    (word, kind), shown = pairs[0], pairs[1:]
    lines = []
    while sum(map(len, lines)) < min(characters, 8000):
        lines.append("Word: {}\nKind: {}\n".format(*pick.choice(shown)))
    return "\n".join(lines), "", f"Word: {word}\nKind:", [kind]


TASKS = {"needle": (needle, 12), "needles": (many_needles, 12), "variables": (variables, 24), "common": (common, 48),
         "frequent": (frequent, 20), "copying": (copying, 16), "labels": (labels, 4)}


def make_items(args):
    """{id: (task, what the answer must hold)}, and the lines of a request file."""
    book, wanted, lines = Book(pathlib.Path(args.text)), {}, []
    for task in args.tasks:
        make, most = TASKS[task]
        for i in range(args.items):
            pick = random.Random(f"{args.seed}/{task}/{i}")
            context, question, begin, answers = make(pick, book, args.tokens * CHARACTERS)
            first = [question, context, begin] if args.question == "first" else [context, question, begin]
            name = f"{task}-{i}"
            wanted[name] = task, answers
            lines.append({"id": name, "prompt": "\n\n".join(part for part in first if part), "max_tokens": most})
    return wanted, "".join(json.dumps(line) + "\n" for line in lines)


def share_found(text, answers):
    return sum(answer.lower() in text.lower() for answer in answers) / len(answers)


def answer(args, folder, rule):
    """{id: text} under a rule."""
    output = folder / "answers.jsonl"
    for file in folder.glob("answers.jsonl*"):
        file.unlink()
    done = subprocess.run([args.weft, "generate", "--model", args.model, "--input", str(folder / "items.jsonl"), "--output",
                           str(output), *curves.flags_of(rule), "--quiet", *args.flags])
    if done.returncode:
        raise SystemExit(f"tasks.py: weft generate ended with exit code {done.returncode}")
    return {line["id"]: line["text"] for line in map(json.loads, output.open())}


def mean_and_error(values):
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1) / len(values))


def scored(wanted, texts):
    """The scores of the items, in their order."""
    return [share_found(texts[name], answers) for name, (_, answers) in wanted.items()]


def difference(scores, first):
    return mean_and_error([a - b for a, b in zip(scores, first)])


def table(args, wanted, scores, firsts):
    """A row for each rule, a column for each task. `firsts`: the rule, if any, that a rule is compared with."""
    lines = ["| rule | " + " | ".join(args.tasks) + " | mean | difference |", "|---" * (len(args.tasks) + 3) + "|"]
    for rule, of_rule in scores.items():
        columns = []
        for task in args.tasks:
            columns.append(mean_and_error([score for score, (of, _) in zip(of_rule, wanted.values()) if of == task])[0])
        compared = "{:+.3f} ({:.3f})".format(*difference(of_rule, scores[firsts[rule]])) if firsts[rule] else ""
        lines.append(f"| {rule} | " + " | ".join(f"{column:.2f}" for column in columns) +
                     f" | {sum(columns) / len(columns):.3f} | {compared} |")
    return "\n".join(lines) + "\n"


def add_items(parser, of, items, tokens):
    """The arguments of make_items(), and weft, with these by default."""
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=of)
    parser.add_argument("--items", type=int, default=items)
    parser.add_argument("--tokens", type=int, default=tokens)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--question", choices=["last", "first"], default="last")
    parser.add_argument("--text", default=str(ROOT / "tests/data/text/books-valid.txt.xz"))
    parser.add_argument("--weft", default=str(ROOT / "build/release/weft"))


def draw(args, runs, scores):
    measured = []
    for run in runs:
        _, error = difference(scores[run.text], scores[run.first or run.text])
        measured.append((run, mean_and_error(scores[run.text])[0], error))
    title = f"{pathlib.Path(args.model).resolve().name}, {args.items} items of {args.tokens} tokens of each task"
    curves.draw(args.picture, title + (", question first" if args.question == "first" else ""),
                f"Bars: standard error of the paired differences to {args.rules[0]}.",
                f"mean score of {', '.join(args.tasks)}", measured, ends=(0, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rules", nargs="+", default=["full", "h2o:0.1:0.1", "h2o:0.05:0.05", "recent:0.2"])
    add_items(parser, list(TASKS), 100, 2000)
    parser.add_argument("--output")
    curves.add_options(parser, "--answers", "the scores of the items")
    parser.add_argument("flags", nargs="*", help="of weft generate, after --")
    args = parser.parse_args()
    runs = curves.runs(args)
    firsts = {run.text: run.first for run in runs}
    wanted, lines = make_items(args)
    settings = {"model": str(pathlib.Path(args.model).resolve()), "text": str(pathlib.Path(args.text).resolve()),
                **{name: getattr(args, name) for name in ("tasks", "items", "tokens", "seed", "question", "flags")}}
    kept, scores = curves.Kept(args.answers, settings, len(wanted)), {}

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "items.jsonl").write_text(lines)
        for run in runs:
            scores[run.text] = kept.of(run.text, lambda rule: scored(wanted, answer(args, folder, rule)))
            print(table(args, wanted, scores, firsts), flush=True)
    if args.output:
        pathlib.Path(args.output).write_text(table(args, wanted, scores, firsts))
    if args.picture:
        draw(args, runs, scores)


if __name__ == "__main__":
    main()
