#!/usr/bin/env python3
"""Weft and llama.cpp with everything in memory: TinyLlama-1.1B's shape, the same random weights on both sides, F16 and
Q4_0 against float16 and int4, KV in 16 bits, prompts of 128 and 512 tokens, batches of 1, 8, 32 and 128. Under a memory
limit the two race in race.py --shape tinyllama-1.1b. --experts takes OLMoE's shape (6.9 billion weights, 64 experts of
which a token takes 8) as one GGUF file of random numbers that both read: Q4_0, 4 GB, or F16, 14 GB. With --limit both
stream the weights from the disk within so much memory, page cache included, and decode alone is timed.

Where all prompts together have more than --most-prefill tokens, decode alone is timed: llama.cpp computes one prompt for
all sequences (-pps), and Weft begins with random keys and values (--skip-prefill). Every run is put in the record (JSON)
as it ends, and the next call goes on with what is missing.

llama.cpp's sources come from PyPI, and so does gguf, which writes its files (in the Python that runs this):
  pip install gguf safetensors scikit-build-core
  pip download --no-binary llama-cpp-python --no-deps --dest build/llama llama-cpp-python
  tar xzf build/llama/llama_cpp_python-*.tar.gz -C build/llama
  cmake -S build/llama/llama_cpp_python-*/vendor/llama.cpp -B build/llama/out -G Ninja -DCMAKE_BUILD_TYPE=Release \\
    -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \\
    -DGGML_OPENMP=OFF -DBUILD_SHARED_LIBS=OFF
  ninja -C build/llama/out llama-batched-bench
"""
import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

from memory_limit import forget, run_within
from random_checkpoint import write_checkpoint

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BENCH = ROOT / "build/llama/out/bin/llama-batched-bench"
FORMATS = {"F16": "float16", "Q4_0": "int4"}  # llama.cpp's, and Weft's next to it
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def name_in_gguf(name):
    name = name.removesuffix(".weight")
    if name in NAMES:
        return NAMES[name] + ".weight"
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.weight"


def begin_gguf(architecture, shape, file):
    """A writer of a file without a vocabulary, which end_gguf() puts in place, with the sizes that a config.json has."""
    import gguf

    out = gguf.GGUFWriter(file.with_suffix(".partial"), architecture, use_temp_file=False)
    out.add_context_length(shape["max_position_embeddings"])
    out.add_embedding_length(shape["hidden_size"])
    out.add_block_count(shape["num_hidden_layers"])
    out.add_feed_forward_length(shape["intermediate_size"])
    out.add_head_count(shape["num_attention_heads"])
    out.add_head_count_kv(shape["num_key_value_heads"])
    out.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    out.add_rope_dimension_count(shape["hidden_size"] // shape["num_attention_heads"])
    out.add_rope_freq_base(shape["rope_theta"])
    out.add_vocab_size(shape["vocab_size"])
    out.add_tokenizer_model("no_vocab")
    return out


def end_gguf(out, file):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    file.with_suffix(".partial").replace(file)


def write_gguf(checkpoint, file, form):
    """The weights of a LLaMA checkpoint for llama.cpp, without a vocabulary. In Q4_0 the head is Q8_0, which is nearest to
    the Q6_K of its own quantiser. Rows are not permuted for its rotary embedding: with random weights it is all one."""
    import gguf
    from safetensors import safe_open

    out = begin_gguf("llama", json.loads((checkpoint / "config.json").read_text()), file)
    with safe_open(str(checkpoint / "model.safetensors"), "numpy") as tensors:
        for name in tensors.keys():
            value = tensors.get_tensor(name)
            if value.ndim == 1:
                out.add_tensor(name_in_gguf(name), value.astype("float32"))
            elif form == "F16":
                out.add_tensor(name_in_gguf(name), value)
            else:
                kind = gguf.GGMLQuantizationType.Q8_0 if name == "lm_head.weight" else gguf.GGMLQuantizationType.Q4_0
                out.add_tensor(name_in_gguf(name), gguf.quants.quantize(value.astype("float32"), kind), raw_dtype=kind)
    end_gguf(out, file)


def write_experts(shape, file, form):
    """A GGUF file of OLMoE's architecture whose matrices are random, those of all layers the same ones."""
    import gguf
    import numpy

    halves = form == "F16"
    form, vector = gguf.GGMLQuantizationType[form], gguf.GGMLQuantizationType.F32
    hidden, wide, experts = shape["hidden_size"], shape["intermediate_size"], shape["num_experts"]
    out = begin_gguf("olmoe", shape, file)
    out.add_expert_count(experts)
    out.add_expert_used_count(shape["num_experts_per_tok"])
    random = numpy.random.default_rng(1)

    def matrix(*sizes):
        if halves:
            return (random.standard_normal(sizes, "float32") / sizes[-1] ** 0.5).astype("float16")
        blocks = random.integers(0, 256, (*sizes[:-1], sizes[-1] // 32, 18), numpy.uint8)
        blocks[..., :2] = numpy.frombuffer(numpy.float16(0.2 / sizes[-1] ** 0.5).tobytes(), numpy.uint8)
        return blocks.reshape(*sizes[:-1], -1)

    square, table, ones = matrix(hidden, hidden), matrix(shape["vocab_size"], hidden), numpy.ones(hidden, "float32")
    inward, outward = matrix(experts, wide, hidden), matrix(experts, hidden, wide)
    router = random.standard_normal((experts, hidden), "float32") * 0.1
    tensors = {"token_embd": table, "output": table, "output_norm": ones}
    for layer in range(shape["num_hidden_layers"]):
        parts = {f"attn_{part}": square for part in ("q", "k", "v", "output")}
        parts |= {part: ones for part in ("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm")}
        parts |= {"ffn_gate_inp": router, "ffn_gate_exps": inward, "ffn_up_exps": inward, "ffn_down_exps": outward}
        tensors |= {f"blk.{layer}.{part}": value for part, value in parts.items()}
    for name, value in tensors.items():
        out.add_tensor(name + ".weight", value, raw_dtype=vector if value.dtype == "float32" else form)
    end_gguf(out, file)


def gguf_of(checkpoint, form):
    """The file of a checkpoint's weights, which is made if there is none."""
    file = checkpoint.parent / "gguf" / f"{checkpoint.name}-{form}.gguf"
    file.parent.mkdir(exist_ok=True)
    if not file.exists():
        write_gguf(checkpoint, file, form)
    return file


def llama_command(file, prompt, tokens, batch, shared=False):
    threads = len(os.sched_getaffinity(0))
    command = [BENCH, "-m", file, "-c", batch * (-(-(prompt + tokens + 1) // 256) * 256), "-npp", prompt, "-ntg", tokens,
               "-npl", batch, "-t", threads, "--output-format", "jsonl"]
    return command + (["-pps"] if shared else [])


def llama_figures(said):
    for line in said.splitlines():
        if line.startswith("{"):
            figures = json.loads(line)
            speed = {"decode": figures["speed_tg"]}
            return speed if figures["is_pp_shared"] else speed | {"prefill": figures["speed_pp"]}
    raise ValueError("llama-batched-bench printed no figures: " + said[-300:])


class Race:
    def __init__(self, options):
        self.options = options
        self.deadline = time.monotonic() + 60 * options.minutes
        self.file = None
        if options.experts:
            shape = ROOT / "configs/models/olmoe-1b-7b.json"
            [form] = options.formats
            self.file = options.work / f"{shape.stem}-{form}.gguf"
            if not self.file.exists():
                write_experts(json.loads(shape.read_text()), self.file, form)
        else:
            shape = HERE / ("tiny-llama.json" if options.tiny else "tinyllama-1.1b.json")
            self.checkpoint = options.work / shape.stem
            write_checkpoint(self.checkpoint, json.loads(shape.read_text()))
        self.entries = json.loads(options.record.read_text()) if options.record.exists() else []

    def command(self, program, form, prompt, batch, shared):
        tokens = self.options.tokens
        if program == "llama.cpp":
            return llama_command(self.file or gguf_of(self.checkpoint, form), prompt, tokens, batch, shared)
        model = self.file or self.checkpoint
        if form == "Q4_0" and not self.file:
            model = model.with_name(model.name + "-int4")
            if not model.exists():
                subprocess.run([self.options.weft, "convert", "--model", self.checkpoint, "--output", model,
                                "--weight-dtype", "int4"], check=True)
        command = [self.options.weft, "bench", "--model", model, *([] if self.file else ["--weight-dtype", FORMATS[form]]),
                   "--percent", 0 if self.options.limit else 100, 0, 100, 0, 100, 0, "--gpu-batch-size",
                   min(batch, self.options.gpu_batch), "--num-gpu-batches",
                   max(1, batch // self.options.gpu_batch), "--prompt-len", prompt, "--gen-len", tokens + 1, "--disk-dir",
                   self.options.work, "--device-memory", self.options.memory]
        return command + (["--skip-prefill"] if shared else []) + (["--no-warm-up"] if self.options.limit else [])

    def one(self, program, form, prompt, batch):
        key = {"program": program, "format": form, "prompt": prompt, "batch": batch}
        if any("decode" in e for e in self.entries if all(e[k] == v for k, v in key.items())):
            return
        shared = prompt * batch > self.options.most_prefill or self.options.limit is not None
        if self.options.limit:
            forget(self.options.work)
        command = [str(word) for word in self.command(program, form, prompt, batch, shared)]
        left = self.deadline - time.monotonic()
        if left < 5:
            return
        print("$", shlex.join(command), file=sys.stderr, flush=True)
        outcome = run_within(command, self.options.limit and self.options.limit << 10, left)
        entry = {"tokens": self.options.tokens, "seconds": outcome.seconds, "command": shlex.join(command)}
        if outcome.peak_mib:
            entry["peak_mib"] = outcome.peak_mib
        if outcome.reason:
            entry["reason"] = outcome.reason
        elif program == "llama.cpp":
            entry |= llama_figures(outcome.said)
        else:
            entry |= {k: v["median"] for k, v in json.loads(outcome.said)["tokens_per_second"].items()
                      if v and k in ("decode", "prefill")}
        self.entries = [e for e in self.entries if not all(e[k] == v for k, v in key.items())] + [key | entry]
        following = self.options.record.with_suffix(".next")
        following.write_text(json.dumps(self.entries, indent=1) + "\n")
        following.replace(self.options.record)

    def all(self):
        for prompt in self.options.prompts:
            for batch in self.options.batches:
                for form in self.options.formats:
                    for program in ("weft", "llama.cpp"):
                        self.one(program, form, prompt, batch)


def table(entries):
    lines = ["| prompt | batch | format | Weft decode tok/s | llama.cpp decode tok/s | ratio | Weft prefill tok/s | llama.cpp "
             "prefill tok/s | ratio |", "|---|---|---|---|---|---|---|---|---|"]
    places = sorted({(e["prompt"], e["batch"], e["format"]) for e in entries})
    for prompt, batch, form in places:
        both = [next((e for e in entries if (e["prompt"], e["batch"], e["format"], e["program"]) ==
                      (prompt, batch, form, program)), {}) for program in ("weft", "llama.cpp")]
        cells = [str(prompt), str(batch), f"{FORMATS[form]} / {form}"]
        for what in ("decode", "prefill"):
            own, theirs = (e.get(what) for e in both)
            cells += [f"{own:.2f}" if own else "", f"{theirs:.2f}" if theirs else "",
                      f"{own / theirs:.2f}x" if own and theirs else ""]
        lines.append("| " + " | ".join(cells) + " |")
    reasons = [f"- {e['program']}, {e['format']}, prompt {e['prompt']}, batch {e['batch']}: {e['reason']}" for e in entries
               if "reason" in e]
    return "\n".join([*lines, "", *reasons]).rstrip()


def main():
    def numbers(text):
        return [int(number) for number in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=numbers, default=[128, 512])
    parser.add_argument("--batches", type=numbers, default=[1, 8, 32, 128])
    parser.add_argument("--formats", help="by default Q4_0,F16, with --experts Q4_0")
    parser.add_argument("--tokens", type=int, default=16, help="decode steps that are timed")
    parser.add_argument("--most-prefill", type=int, default=8192)
    parser.add_argument("--gpu-batch", type=int, default=128, help="Weft: the most sequences of one compute op")
    parser.add_argument("--memory", default="12GiB", help="Weft: what the run may use")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/race", help="a folder on a disk, 6 GB")
    parser.add_argument("--record", type=pathlib.Path, help="by default llama_cpp.json in --work")
    parser.add_argument("--weft", type=pathlib.Path, default=ROOT / "build/release/weft")
    parser.add_argument("--experts", action="store_true", help="OLMoE's shape, in one of --formats")
    parser.add_argument("--limit", type=int, metavar="GIB", help="with --experts: stream from the disk within this memory")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, which shows that the script works")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE", help="the table of a record, and nothing else")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return
    for program in (options.weft, BENCH):
        if not program.exists():
            sys.exit(f"llama_cpp: error: {program} is missing; --help says how it is built")
    options.formats = (options.formats or ("Q4_0" if options.experts else "Q4_0,F16")).split(",")
    if options.experts and len(options.formats) > 1:
        parser.error("--experts takes one of --formats")
    if options.limit and not options.experts:
        parser.error("--limit goes with --experts; race.py has the race under a limit for dense models")
    for form in options.formats:
        if form not in FORMATS:
            parser.error(f"no format '{form}'; there are {', '.join(FORMATS)}")
    options.work.mkdir(parents=True, exist_ok=True)
    options.record = options.record or options.work / ("llama_cpp_experts.json" if options.experts else "llama_cpp.json")
    race = Race(options)
    race.all()
    print(table(race.entries))


if __name__ == "__main__":
    main()
