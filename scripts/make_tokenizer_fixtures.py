#!/usr/bin/env python3
"""Writes the tokenizer's fixtures under tests/data/tokenizer: strings from a seed, and what Hugging Face makes of them.

  strings.jsonl           one string a line; [unit, times] stands for unit repeated
  opt/ids.bin demo/ids.bin
                          the ids of each string with the first token in front: LEB128 numbers; the count of ids, then
                          for each run of one id: id * 2, or id * 2 + 1 and the length of the run
  opt/decoded.jsonl demo/decoded.jsonl
                          [ids, text]: random ids, and what they decode to without special tokens
  neox/ pythia/ llama3/ qwen2/ smollm2/ galactica/ llama2/ mistral/
                          small tokenizer.json of these models' kinds, trained on the strings; hashes.bin, of each
                          string's ids the FNV-1a in 8 bytes (each id in 4, both little-endian); decoded.jsonl
  neox/prefix_space.bin   the hashes with add_prefix_space
  added/cases.jsonl       [text, ids, decoded]: OPT's vocabulary with the added tokens of added/tokenizer_config.json
  classes.txt             FNV-1a of the pattern's class (0 other, 1 letter, 2 number, 3 space) of every code point

Needs tokenizers and transformers.
"""

import argparse
import json
import random
import shutil
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from make_unicode_classes import class_of

ROOT = Path(__file__).resolve().parent.parent
SPACES = [chr(c) for c in (9, 10, 11, 12, 13, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'l", "'r", "'v", "''s", "\u2019s", "'", " '", " 's", "'re's", "!'s"]
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>", "<S>", "</s", "<</s>>", "madeupword0000", "</s></s>", "<pad ", "< /s>"]
WORDS = """the of and a to in is you that it he was for on are as with his they I at be this have from or one had by word but not
what all were we when your can said there use an each which she do how their if will up other about out many then them these
so some her would make like him into time has look two more write go see number no way could people my than first water been
call who oil its now find long down day did get come made may part Internationalisation antidisestablishmentarianism GPU KV""".split()
CODE = [
    "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * b[i];\n}\n", "def f(x):\n    return x ** 2  # squared\n\n\n", "#include <vector>\n#pragma once\n",
    "SELECT * FROM t WHERE id != 'x''y' AND n >= 10;", "<div class=\"a\">&nbsp;</div>\r\n", "{\"a\": [1, 2.5e-3, null], \"b\": \"\\u00e9\"}",
    "https://example.com/a/b?c=d&e=%20f#g", "x->y.z(); // ### ####", "0x1F600 0b1010 1_000_000 3.14159e+10", "a\tb\t\tc\t \td", "```python\nprint('hi')\n```",
]
EMOJI = ["\U0001F600", "\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466", "\U0001F44D\U0001F3FD", "\u2764\uFE0F", "\U0001F1E9\U0001F1EA", "1\uFE0F\u20E3",
         "\U0001F3F4\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F", "\u263A", "\U0001FAE0", "\U0001F9D1\u200D\U0001F4BB"]
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.", "Привет, как дела? Всё хорошо!", "こんにちは、世界。今日は2024年です。", "你好，世界！我有三只猫。", "안녕하세요 세계, 만나서 반갑습니다.",
    "مرحبا بالعالم ١٢٣", "שלום עולם", "नमस्ते दुनिया १२३", "สวัสดีชาวโลก ๑๒๓", "Γειά σου Κόσμε", "Xin chào thế giới", "Àéîõü ÇŞĞ ßœæø ﬁﬂ", "ⅣⅫ ½ ² ³ ₁ ① ㊿ 𝟘𝟙𝟚 𝔘𝔫𝔦", "e\u0301e\u0300 n\u0303 Z\u0351\u036b\u0343\u036a\u0302a\u0310",
    "It's we're you've I'm they'll he'd can't DON'T she'S", "Ünïcödé  \u200b zero\u200cwidth\u2060 joiners\ufeff", "price: $1,234.56 (-7%) №5 §3 €9 ™",
]


def any_char(rng):
    while True:
        code = rng.choice((rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x20000), rng.randrange(0x110000)))
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def spaces(rng):
    kind = rng.randrange(4)
    if kind == 0:
        return " " * rng.randrange(1, 12)
    if kind == 1:
        return "\n" * rng.randrange(1, 4) + " " * rng.randrange(0, 9)
    return "".join(rng.choice(SPACES if kind == 2 else " \t\r\n") for _ in range(rng.randrange(1, 7)))


def piece(rng):
    return rng.choice((
        lambda: " " + rng.choice(WORDS), lambda: rng.choice(WORDS), lambda: rng.choice(WORDS).upper(), lambda: spaces(rng),
        lambda: rng.choice(CONTRACTIONS), lambda: rng.choice(SPECIALS), lambda: rng.choice(CODE), lambda: rng.choice(EMOJI),
        lambda: rng.choice(SENTENCES), lambda: str(rng.randrange(10 ** rng.randrange(1, 15))),
        lambda: "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(rng.randrange(1, 6))),
        lambda: "".join(any_char(rng) for _ in range(rng.randrange(1, 5))), lambda: chr(rng.randrange(0x20)),
        lambda: "".join(rng.choice("etaoinshrdlu") for _ in range(rng.randrange(1, 30))),
    ))()


def make_strings(rng, count):
    strings = ["", " ", "  ", "\n", "\0", "\uFFFF", "\U0010FFFF", "\uFFFD", "\uFEFFtext", "\x7f\x80\x9f", "a\0b"]
    strings += CONTRACTIONS + SPECIALS + CODE + EMOJI + SENTENCES + SPACES + [chr(c) for c in range(256)]
    strings += [a + s + b for s in SPACES for a, b in (("a", "b"), (" ", "1"), ("\t", " !"), ("", "x"), ("x", ""))]
    strings += [a + b for a in CONTRACTIONS for b in ("s", " x", "'", "1", "é", "\n")]
    for block in range(0, 0x110000, 0x80):  # every block of Unicode; of the planes without characters one in sixteen
        if not 0xD800 <= block < 0xE000 and (block < 0x32000 or block % 0x800 == 0 or 0xE0000 <= block < 0xE0200):
            strings.append("".join(chr(block + i) for i in range(0, 0x80, 1 if block < 0x3400 else 3)))
    while len(strings) < count:
        strings.append("".join(piece(rng) for _ in range(rng.choice((1, 2, 2, 3, 5, 8, 14)))))
    for unit in ("a", " ", "\n", "!", "1", "ab", "the", " the", "=", "-", "Å", "中", "\U0001F600", "\u0301", "\t ", "</s>", "'s", "\u00a0", "#", "xyzzy", "\0"):
        strings.append([unit, 20000 // len(unit)])
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    return strings + ["".join(rng.choice(alphabet) for _ in range(20000)), "".join(rng.choice(alphabet + "ABC 0123.,'\n") for _ in range(20000))]


def text_of(entry):
    return entry if isinstance(entry, str) else entry[0] * entry[1]


def leb128(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return out


def packed(ids):
    out, at = leb128(len(ids)), 0
    while at < len(ids):
        run = 1
        while at + run < len(ids) and ids[at + run] == ids[at]:
            run += 1
        out += leb128(ids[at] * 2) if run == 1 else leb128(ids[at] * 2 + 1) + leb128(run)
        at += run
    return out


def random_ids(rng, size, tokenizer, strings):
    kind = rng.randrange(3)
    if kind == 0:  # ids that are single bytes or rare: half characters
        return [rng.randrange(min(size, 400)) for _ in range(rng.randrange(1, 12))]
    if kind == 1:
        return [rng.randrange(size + 20) for _ in range(rng.randrange(1, 12))]
    ids = tokenizer(text_of(rng.choice(strings))).input_ids[:40]
    return rng.sample(ids, rng.randrange(len(ids) + 1)) if ids else []


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=True, separators=(",", ":")) + "\n" for row in rows))
    print(path, len(rows), path.stat().st_size)


def decoded(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def added_cases(rng, folder, out):
    """In a copy, because the vocabulary is that of `folder`."""
    with tempfile.TemporaryDirectory() as copy:
        for source in (folder / "vocab.json", folder / "merges.txt", out / "tokenizer_config.json"):
            shutil.copy(source, copy)
        tokenizer = AutoTokenizer.from_pretrained(copy)
    parts = [t.content for t in tokenizer.added_tokens_decoder.values()]
    parts += [" ", "  ", "\n", "\u3000", "\u00a0", "x", " word", "two", "tw", "<", "é", "日", "<|extra|", "!", "\u200b"]
    rows = []
    for _ in range(1500):
        text = "".join(rng.choice(parts) for _ in range(rng.randrange(1, 9)))
        ids = tokenizer(text).input_ids
        rows.append([text, ids, decoded(tokenizer, ids)])
    return rows


BYTE_LEVEL = ("neox", "pythia", "llama3", "qwen2", "smollm2", "galactica")
KINDS = (*BYTE_LEVEL, "llama2", "mistral")
NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def trained(pre_tokenizer, texts, alphabet, normalizer=None):
    """Vocabulary, in order, and merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, limit_alphabet=600, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [tuple(merge) for merge in model["merges"]]


def byte_of(char):
    """The byte that a character of GPT-2's alphabet stands for."""
    code = ord(char)
    if code < 0x100:
        return code
    return [b for b in range(256) if not (0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or 0xAE <= b <= 0xFF)][code - 0x100]


def byte_level(kind, texts):
    split = {"llama3": SPLIT % "{1,3}", "qwen2": SPLIT % ""}.get(kind)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    cut = bytes_only if split is None else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), bytes_only])
    if kind == "smollm2":
        cut = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_only])
    if kind == "galactica":  # its marker is another text, which no string holds
        cut = pre_tokenizers.Sequence([pre_tokenizers.Split("https", "removed"), pre_tokenizers.Digits(individual_digits=True), bytes_only])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if kind == "pythia":  # as GPT-NeoX's, whose vocabulary has only the bytes that occur in texts
        alphabet = [c for c in alphabet if byte_of(c) not in NEVER_IN_UTF8]
    if kind == "galactica":
        alphabet = [c for c in alphabet if " " < c <= "~" or c == "\u0120"]
    names, merges = trained(cut, texts, alphabet)
    if kind == "llama3":
        merges = [merge for i, merge in enumerate(merges) if i % 7]  # so that only ignore_merges finds some words
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges, ignore_merges=kind == "llama3"))
    tokenizer.pre_tokenizer, tokenizer.decoder, tokenizer.post_processor = cut, decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    if kind in ("neox", "pythia", "qwen2"):
        tokenizer.normalizer = normalizers.NFC()
    special = {"neox": ["<|endoftext|>", "<|padding|>"], "pythia": ["<|endoftext|>", "<|padding|>"],
               "galactica": ["<s>", "<pad>", "</s>", "<unk>", "[START_REF]"], "llama3": ["<|begin_of_text|>", "<|end_of_text|>", "</s>"],
               "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
               "smollm2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]}[kind]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    if kind in ("neox", "pythia"):
        tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(12, 1, -1)] + [AddedToken("e\u0301e", normalized=True)])
    if kind == "llama3":
        template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def sentence_pieces(kind, texts):
    names, merges = trained(pre_tokenizers.Metaspace(), texts, [])
    specials = ["<unk>", "<s>", "</s>"]
    names = specials + [f"<0x{byte:02X}>" for byte in range(256)] + [name for name in names if name not in specials]
    model = models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    if kind == "llama2":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.add_tokens([AddedToken(text, normalized=text == "word", special=False) for text in ("word", "<pad>")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def hash_of(ids):
    value = 0xCBF29CE484222325
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value.to_bytes(8, "little")


def write_kind(kind, out, strings, rng):
    texts = [text_of(s) for s in strings]
    short = [text[:200] for text in texts]
    tokenizer = byte_level(kind, short) if kind in BYTE_LEVEL else sentence_pieces(kind, short)
    out.mkdir(exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    ids = [tokenizer.encode(text).ids for text in texts]
    (out / "hashes.bin").write_bytes(b"".join(map(hash_of, ids)))
    if kind == "neox":
        prefixed = Tokenizer.from_file(str(out / "tokenizer.json"))
        prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        (out / "prefix_space.bin").write_bytes(b"".join(hash_of(prefixed.encode(text).ids) for text in texts))
    rows = []
    for _ in range(2000):
        row = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(1, 12))]
        if rng.randrange(2):
            row = rng.choice(ids)[:40]
            row = rng.sample(row, rng.randrange(len(row) + 1))
        if rng.randrange(3) == 0:
            row = [rng.randrange(300) for _ in range(rng.randrange(1, 12))]
        rows.append([row, tokenizer.decode(row, skip_special_tokens=True)])
    write_lines(out / "decoded.jsonl", rows)
    print(out, tokenizer.get_vocab_size(), sum(map(len, ids)), (out / "tokenizer.json").stat().st_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strings", type=int, default=11000)
    parser.add_argument("--output", type=Path, default=ROOT / "tests/data/tokenizer")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, metavar="KIND",
                        help="only the small tokenizer.json (of these kinds), from the strings that are there")
    args = parser.parse_args()
    if args.kinds is not None:
        strings = [json.loads(line) for line in (args.output / "strings.jsonl").read_text().splitlines()]
        for kind in args.kinds or KINDS:
            write_kind(kind, args.output / kind, strings, random.Random(args.seed))
        return

    rng = random.Random(args.seed)
    strings = make_strings(rng, args.strings)
    write_lines(args.output / "strings.jsonl", strings)
    for name, folder in (("opt", args.output / "opt"), ("demo", ROOT / "models/demo")):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        out = args.output / name
        out.mkdir(exist_ok=True)
        ids = [tokenizer(text_of(s)).input_ids for s in strings]
        (out / "ids.bin").write_bytes(b"".join(map(packed, ids)))
        print(out / "ids.bin", sum(map(len, ids)), (out / "ids.bin").stat().st_size)
        rows = [random_ids(rng, len(tokenizer), tokenizer, strings) for _ in range(2000)]
        write_lines(out / "decoded.jsonl", [[row, decoded(tokenizer, row)] for row in rows])
    write_lines(args.output / "added/cases.jsonl", added_cases(random.Random(args.seed), args.output / "opt", args.output / "added"))

    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str
    value = 0xCBF29CE484222325
    for code in range(0x110000):
        value = (value ^ class_of(code, split)) * 0x100000001B3 % 2**64
    (args.output / "classes.txt").write_text(f"{value:016x}\n")


if __name__ == "__main__":
    main()
