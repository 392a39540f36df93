"""What the tests of the program as its users start it share: running it, JSONL files, a tiny checkpoint."""

import json
import math
import pathlib
import random
import signal
import struct
import subprocess
import time

TINY = {"model_type": "opt", "hidden_size": 16, "num_hidden_layers": 2, "ffn_dim": 32, "num_attention_heads": 2,
        "vocab_size": 64, "max_position_embeddings": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": True,
        "eos_token_id": None, "torch_dtype": "float16"}

HANGS = 600  # seconds after which a process counts as one that hangs, on a machine that others load too


class Weft:
    """The binary; every call is a process of its own."""

    def __init__(self, binary):
        self.binary = str(binary)

    def command(self, *arguments):
        return [self.binary, *map(str, arguments)]

    def sanitized(self):
        """Whether it is a build with sanitizers, which take memory and time of their own."""
        program = pathlib.Path(self.binary).read_bytes()
        return b"__asan_init" in program or b"__tsan_init" in program

    def run(self, *arguments, timeout=HANGS, **options):
        return subprocess.run(self.command(*arguments), capture_output=True, timeout=timeout, **options)

    def start(self, *arguments):
        return subprocess.Popen(self.command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def wait_until_it_listens(process):
    """Until a run waits for SIGINT and SIGTERM, which would end it without a word before."""
    status, listens = pathlib.Path(f"/proc/{process.pid}/status"), 1 << (signal.SIGTERM - 1)
    while not int(status.read_text().partition("SigBlk:")[2].split()[0], 16) & listens:
        assert process.poll() is None, "it ended before it listened"
        time.sleep(0.001)


def crowding():
    """How many times longer work takes beside what else the machine does than alone, at least 1."""
    wall, processor = time.monotonic(), time.process_time()
    while time.process_time() < processor + 0.1:
        pass
    return max(1.0, (time.monotonic() - wall) / (time.process_time() - processor))


def write_lines(path, requests):
    path.write_text("".join(json.dumps(request, ensure_ascii=False) + "\n" for request in requests), encoding="utf-8")


def read_lines(path):
    """All whole lines as JSON; a line cut short fails."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n"), f"{path} ends within a line"
    return [json.loads(line) for line in text.splitlines()]


def tiny_tensors(config=None):
    """Names and shapes as transformers writes them for a pre-norm OPT without projections."""
    c = config or TINY
    hidden, ffn = c["hidden_size"], c["ffn_dim"]
    tensors = {"model.decoder.embed_tokens.weight": [c["vocab_size"], hidden],
               "model.decoder.embed_positions.weight": [c["max_position_embeddings"] + 2, hidden],
               "model.decoder.final_layer_norm.weight": [hidden], "model.decoder.final_layer_norm.bias": [hidden]}
    if not c.get("tie_word_embeddings", True):
        tensors["lm_head.weight"] = [c["vocab_size"], hidden]
    for layer in range(c["num_hidden_layers"]):
        prefix = f"model.decoder.layers.{layer}."
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            tensors[f"{prefix}self_attn.{name}.weight"] = [hidden, hidden]
            tensors[f"{prefix}self_attn.{name}.bias"] = [hidden]
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            tensors[f"{prefix}{name}.weight"] = [hidden]
            tensors[f"{prefix}{name}.bias"] = [hidden]
        tensors[f"{prefix}fc1.weight"], tensors[f"{prefix}fc1.bias"] = [ffn, hidden], [ffn]
        tensors[f"{prefix}fc2.weight"], tensors[f"{prefix}fc2.bias"] = [hidden, ffn], [hidden]
    return tensors


def write_tiny_model(folder, seed=1, without=(), **changes):
    """A checkpoint folder without tokenizer files; random weights large enough that answers differ."""
    folder = pathlib.Path(folder)
    folder.mkdir()
    config = {**TINY, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    generator = random.Random(seed)
    header, data = {}, bytearray()
    for name, shape in tiny_tensors(config).items():
        if name in without:
            continue
        count, begin = math.prod(shape), len(data)
        base = 1.0 if "layer_norm.weight" in name else 0.0
        data += struct.pack(f"<{count}e", *(base + generator.gauss(0, 0.3) for _ in range(count)))
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, len(data)]}
    (folder / "model.safetensors").write_bytes(safetensors(header, data))
    return folder


def safetensors(header, data):
    """A file of that header and these bytes."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path):
    """The header and the bytes of a file."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]
