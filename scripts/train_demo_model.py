#!/usr/bin/env python3
"""Trains the small OPT model that ships in models/demo, from plain text to a Hugging Face folder.

    python scripts/train_demo_model.py --train books-train.txt.xz --valid books-valid.txt.xz \\
        --workdir build/train --output models/demo --minutes 75

Needs torch, transformers, tokenizers, safetensors and numpy. In order, each stage keeping its result in --workdir:

1. a byte-level BPE tokenizer (GPT-2 style; ids 0 <s>, 1 <pad>, 2 </s>, 3 <unk> as in OPT);
2. both texts as token files, 16 bits a token;
3. an OPT model (pre-norm, learned positions, biases, ReLU, tied head) over windows that begin with id 2, as every
   OPT prompt does; Muon for the matrices of the layers, AdamW for the rest;
4. fp16 safetensors, config and tokenizer files in --output, read back by transformers and measured on --valid.

The learning rate and the attention span follow elapsed training time, so a run ends at its budget whatever the
speed of the machine. A killed run continues from its last checkpoint when the same command is given again. While a
file called "pause" lies in --workdir, training waits and its clock stands still (--deadline does not wait).
"""

import argparse
import itertools
import json
import lzma
import math
import os
import re
import shutil
import time
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
PAD, BOS = 1, 2  # OPT begins every sequence with </s>
POSITION_OFFSET = 2  # OPT's position table has two unused rows in front
LAYER_NORM_EPS = 1e-5


# ---------------------------------------------------------------------------------------------------------- text

def open_text(path: Path):
    """Binary stream over a .txt or .txt.xz file."""
    return lzma.open(path, "rb") if path.suffix == ".xz" else open(path, "rb")


def text_pieces(paths: list[Path], piece_bytes: int = 1 << 16):
    """The texts as str pieces, cut in front of a line break that a printable character follows.

    There GPT-2's pattern always begins a new word, so that the pieces give the same tokens as the whole.
    """
    cut_here = re.compile(rb"\n(?=[!-~])")
    for path in paths:
        with open_text(path) as stream:
            rest = b""
            while data := stream.read(piece_bytes):
                data = rest + data
                cut = max((match.start() for match in cut_here.finditer(data)), default=0)
                rest = data[cut:]
                if cut:
                    yield data[:cut].decode("utf-8")
            if rest:
                yield rest.decode("utf-8")


def train_tokenizer(paths: list[Path], vocab_size: int, folder: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(text_pieces(paths), vocab_size=vocab_size, special_tokens=SPECIAL_TOKENS,
                                  show_progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_model(str(folder))


def write_tokenizer_config(folder: Path, positions: int) -> None:
    special = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    config = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "add_prefix_space": False,
              "errors": "replace", "model_max_length": positions, **special}
    for name, value in (("tokenizer_config.json", config), ("special_tokens_map.json", special)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")


def encode(paths: list[Path], tokenizer_folder: Path, out: Path) -> None:
    """Writes the texts as uint16 token ids to `out`, and the number of UTF-8 bytes to a file next to it."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(str(tokenizer_folder / "vocab.json"), str(tokenizer_folder / "merges.txt"))
    size, part, pieces = 0, out.with_suffix(".part"), text_pieces(paths)
    with open(part, "wb") as stream:
        while group := list(itertools.islice(pieces, 64)):
            size += sum(len(piece.encode("utf-8")) for piece in group)
            for encoding in tokenizer.encode_batch(group):
                np.asarray(encoding.ids, dtype=np.uint16).tofile(stream)
    out.with_suffix(".bytes").write_text(str(size))
    part.rename(out)


class Blocks:
    """Token blocks of one length in a shuffled order that depends on the seed and the number drawn alone."""

    def __init__(self, tokens: np.ndarray, length: int, seed: int):
        self.tokens, self.length, self.seed = tokens, length, seed
        self.per_epoch = len(tokens) // length - 1
        self.epoch = -1

    def batch(self, drawn: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets [count, length]: input row = </s> and all but the last token of the target row."""
        rows = []
        for index in range(drawn, drawn + count):
            epoch, place = divmod(index, self.per_epoch)
            if epoch != self.epoch:
                random = np.random.default_rng((self.seed, epoch))
                self.epoch, self.shift = epoch, int(random.integers(self.length))
                self.order = random.permutation(self.per_epoch)
            begin = self.shift + int(self.order[place]) * self.length
            rows.append(self.tokens[begin:begin + self.length])
        targets = torch.from_numpy(np.stack(rows).astype(np.int64))
        return F.pad(targets[:, :-1], (1, 0), value=BOS), targets


# --------------------------------------------------------------------------------------------------------- model

class LayerNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, eps: float):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = LayerNorm(width, eps), LayerNorm(width, eps)
        self.qkv = nn.Parameter(torch.randn(3, width, width) * width ** -0.5)
        self.qkv_bias = nn.Parameter(torch.zeros(3 * width))
        self.out = nn.Parameter(torch.zeros(width, width))
        self.out_bias = nn.Parameter(torch.zeros(width))
        self.fc1 = nn.Parameter(torch.randn(4 * width, width) * width ** -0.5)
        self.fc1_bias = nn.Parameter(torch.zeros(4 * width))
        self.fc2 = nn.Parameter(torch.zeros(width, 4 * width))
        self.fc2_bias = nn.Parameter(torch.zeros(width))

    def forward(self, x, span: int):
        batch, length, width = x.shape
        qkv = F.linear(self.attention_norm(x), self.qkv.view(3 * width, width), self.qkv_bias)
        pieces = batch * length // span
        q, k, v = qkv.view(pieces, span, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + F.linear(seen, self.out, self.out_bias)
        return x + F.linear(F.relu(F.linear(self.ffn_norm(x), self.fc1, self.fc1_bias)), self.fc2, self.fc2_bias)


class LinearCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of hidden @ embedding.T, in row chunks; the gradient is made on the way forward."""

    @staticmethod
    def forward(ctx, hidden, embedding, targets, chunk, dtype):
        ctx.shape = hidden.shape
        hidden, targets = hidden.flatten(0, 1).to(dtype), targets.flatten()
        narrow = embedding.to(dtype)
        d_hidden, d_embedding = torch.empty_like(hidden, dtype=torch.float32), torch.zeros_like(embedding)
        total = 0.0
        for begin in range(0, len(hidden), chunk):
            rows, wanted = hidden[begin:begin + chunk], targets[begin:begin + chunk, None]
            log_p = torch.log_softmax((rows @ narrow.T).float(), dim=-1)
            total = total - log_p.gather(1, wanted).sum()
            p = log_p.exp_()
            p = p.scatter_add_(1, wanted, torch.full_like(wanted, -1.0, dtype=p.dtype)).to(dtype)
            d_hidden[begin:begin + chunk] = p @ narrow
            d_embedding += p.T @ rows
        ctx.save_for_backward(d_hidden.div_(len(hidden)), d_embedding.div_(len(hidden)))
        return total / len(hidden)

    @staticmethod
    def backward(ctx, upstream):
        d_hidden, d_embedding = ctx.saved_tensors
        return (upstream * d_hidden).view(ctx.shape), upstream * d_embedding, None, None, None


class Opt(nn.Module):
    """OPT's arithmetic, with the residual stream `residual_scale` times as large as the exported model's.

    Layer norms divide the scale out again (their epsilon is scaled too), so that folding it into the weights at
    export is exact; it lets the tied embedding be small enough for the head and large enough for the layers.
    """

    def __init__(self, shape: dict):
        super().__init__()
        width, scale = shape["width"], shape["residual_scale"]
        eps = LAYER_NORM_EPS * scale ** 2
        self.shape, self.scale = shape, scale
        self.tokens = nn.Parameter(torch.randn(shape["vocab"], width) * 0.02)
        self.positions = nn.Parameter(torch.randn(shape["positions"], width) * 0.01)
        self.layers = nn.ModuleList(Layer(width, shape["heads"], eps) for _ in range(shape["layers"]))
        self.final_norm = LayerNorm(width, eps)

    def hidden(self, ids, span: int | None = None):
        x = self.scale * (F.embedding(ids, self.tokens) + self.positions[:ids.shape[1]])
        for layer in self.layers:
            x = layer(x, span or ids.shape[1])
        return self.final_norm(x)

    def loss(self, ids, targets, span: int, dtype: torch.dtype):
        """Mean loss with attention confined to consecutive stretches of `span` tokens, matrix products in `dtype`."""
        with torch.autocast(ids.device.type, dtype, enabled=dtype != torch.float32):
            hidden = self.hidden(ids, span)
        return LinearCrossEntropy.apply(hidden, self.tokens, targets, 1024, dtype)

    def matrices(self):
        return [p for layer in self.layers for p in (layer.qkv, layer.out, layer.fc1, layer.fc2)]

    def exported(self) -> dict[str, torch.Tensor]:
        """Tensors under the names of transformers' OPTForCausalLM, residual scale folded in."""
        width, inverse = self.shape["width"], 1.0 / self.scale
        root = "model.decoder."
        out = {root + "embed_tokens.weight": self.tokens,
               root + "embed_positions.weight": F.pad(self.positions, (0, 0, POSITION_OFFSET, 0)),
               root + "final_layer_norm.weight": self.final_norm.weight,
               root + "final_layer_norm.bias": self.final_norm.bias}
        for index, layer in enumerate(self.layers):
            name = f"{root}layers.{index}."
            for part, weight, bias in zip("qkv", layer.qkv, layer.qkv_bias.view(3, width)):
                out[f"{name}self_attn.{part}_proj.weight"], out[f"{name}self_attn.{part}_proj.bias"] = weight, bias
            out[name + "self_attn.out_proj.weight"] = layer.out * inverse
            out[name + "self_attn.out_proj.bias"] = layer.out_bias * inverse
            out[name + "fc1.weight"], out[name + "fc1.bias"] = layer.fc1, layer.fc1_bias
            out[name + "fc2.weight"], out[name + "fc2.bias"] = layer.fc2 * inverse, layer.fc2_bias * inverse
            for theirs, norm in (("self_attn_layer_norm", layer.attention_norm), ("final_layer_norm", layer.ffn_norm)):
                out[f"{name}{theirs}.weight"], out[f"{name}{theirs}.bias"] = norm.weight, norm.bias
        return {name: tensor.detach().float().cpu().contiguous() for name, tensor in out.items()}


# ----------------------------------------------------------------------------------------------------- optimizer

def orthogonalize(stack: torch.Tensor, dtype: torch.dtype, steps: int = 5) -> torch.Tensor:
    """Newton-Schulz iteration of Muon (Jordan et al. 2024) on [n, rows, columns] with rows <= columns."""
    x = (stack / (stack.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
    for _ in range(steps):
        a = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x


class Muon(torch.optim.Optimizer):
    """Orthogonalized Nesterov momentum; a [3, d, d] parameter counts as three matrices."""

    def __init__(self, params, lr: float, dtype: torch.dtype, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape: dict[tuple, list] = {}
            for p in group["params"]:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
                momentum = self.state[p]["momentum"]
                momentum.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(momentum, group["momentum"])
                for matrix, weight in zip(update.view(-1, *p.shape[-2:]), p.view(-1, *p.shape[-2:])):
                    tall = matrix.shape[0] > matrix.shape[1]
                    wide = matrix.mT if tall else matrix
                    by_shape.setdefault(tuple(wide.shape), []).append((wide, weight.mT if tall else weight, tall))
            for (rows, columns), items in by_shape.items():
                stack = orthogonalize(torch.stack([item[0] for item in items]), self.dtype).float()
                for update, (_, weight, tall) in zip(stack, items):
                    gain = math.sqrt(columns / rows) if tall else 1.0
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * gain)


def make_optimizers(model: Opt, args) -> list[torch.optim.Optimizer]:
    matrices = {id(p) for p in model.matrices()}
    others = [p for p in model.parameters() if id(p) not in matrices]
    optimizers = [Muon(model.matrices(), args.muon_lr, args.dtype, weight_decay=args.weight_decay),
                  torch.optim.AdamW(others, lr=args.adam_lr, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0)]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


# ------------------------------------------------------------------------------------------------------ training

class Clock:
    """Training seconds so far, and the part of the budget that they are; pauses are not counted."""

    def __init__(self, budget_seconds: float, deadline: float | None, used: float):
        self.budget, self.deadline, self.used, self.last = budget_seconds, deadline, used, time.monotonic()

    def tick(self) -> float:
        now = time.monotonic()
        self.used, self.last = self.used + now - self.last, now
        left = self.budget - self.used
        if self.deadline is not None:
            left = min(left, self.deadline - time.time())
        return 1.0 if left <= 0 else self.used / (self.used + left)

    def skip(self) -> None:
        self.last = time.monotonic()


def learning_rate(progress: float, args) -> float:
    """Linear warm-up, a flat stretch, then linearly to zero."""
    if progress < args.warmup:
        return (progress + 1e-4) / args.warmup
    return min(1.0, (1.0 - progress) / (1.0 - args.decay_from))


def attention_span(progress: float, args) -> int:
    """Short attention first, which is cheaper, and the whole window for the rest."""
    return args.short_span if progress < args.short_until else args.positions


class SpareCores:
    """Threads to use now, on Linux and in a run started with nice: one thread of two that waits for a core it
    shares with a compiler holds up the other, so each core that programs of normal priority keep busy is left alone."""

    def __init__(self, threads: int):
        self.threads, self.now, self.last = threads, threads, self.read()

    @staticmethod
    def read() -> tuple[float, float]:
        fields = Path("/proc/stat").read_text().split(maxsplit=2)  # cpu, user, nice, ...
        return int(fields[1]) / os.sysconf("SC_CLK_TCK"), time.monotonic()

    def update(self) -> None:
        busy, at = self.read()
        if at - self.last[1] < 1.0:
            return
        others = (busy - self.last[0]) / (at - self.last[1])
        self.last = (busy, at)
        wanted = max(1, self.threads - int(others + 0.4))
        if wanted != self.now:
            self.now = wanted
            torch.set_num_threads(wanted)


def save_checkpoint(path: Path, model, optimizers, state: dict) -> None:
    part = path.with_suffix(".part")
    torch.save({"shape": model.shape, "model": model.state_dict(), "state": state,
                "optimizers": [optimizer.state_dict() for optimizer in optimizers]}, part)
    part.rename(path)


@torch.no_grad()
def quick_loss(model: Opt, tokens: np.ndarray, windows: int, device) -> float:
    """Mean loss per token over evenly spread full windows of the validation text, in nats."""
    length = model.shape["positions"]
    begins = np.linspace(0, len(tokens) - length, windows).astype(int)
    total = 0.0
    for begin in begins:
        targets = torch.from_numpy(tokens[begin:begin + length].astype(np.int64))[None].to(device)
        ids = F.pad(targets[:, :-1], (1, 0), value=BOS)
        total += F.cross_entropy(model.hidden(ids)[0] @ model.tokens.T, targets[0]).item()
    return total / windows


def wait_while_paused(workdir: Path, clock: Clock) -> None:
    if (workdir / "pause").exists():
        print("paused", flush=True)
        while (workdir / "pause").exists():
            time.sleep(0.5)
        print("continues", flush=True)
        clock.skip()


def train(args, device) -> tuple[Opt, dict]:
    tokens = np.fromfile(args.workdir / "train.tokens", dtype=np.uint16)
    valid = np.fromfile(args.workdir / "valid.tokens", dtype=np.uint16)
    bytes_per_token = int((args.workdir / "valid.bytes").read_text()) / len(valid)
    shape = {"vocab": args.vocab, "width": args.width, "layers": args.layers, "heads": args.heads,
             "positions": args.positions, "residual_scale": args.residual_scale}
    torch.manual_seed(args.seed)
    model = Opt(shape).to(device)
    optimizers = make_optimizers(model, args)
    state = {"step": 0, "blocks": 0, "seconds": 0.0}
    checkpoint = args.workdir / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        if saved["shape"] != shape:
            raise SystemExit(f"{checkpoint} holds a model of shape {saved['shape']}, wanted {shape}: "
                             "give its shape or another --workdir")
        model.load_state_dict(saved["model"])
        state = saved["state"]
        for optimizer, values in zip(optimizers, saved["optimizers"]):
            optimizer.load_state_dict(values)
        print(f"continues at step {state['step']}, {state['seconds']:.0f} s", flush=True)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, "
          f"{len(tokens) / 1e6:.1f} M training tokens, {bytes_per_token:.3f} bytes per validation token", flush=True)

    def report():
        nats = quick_loss(model, valid, args.quick_windows, device)
        print(f"step {state['step']} validation loss {nats:.4f} bpb {nats / math.log(2) / bytes_per_token:.4f}",
              flush=True)

    loss_of = torch.compile(model.loss) if args.compile else model.loss
    spare = SpareCores(args.threads) if args.share else None
    blocks = Blocks(tokens, args.positions, args.seed)
    clock = Clock(args.minutes * 60, args.deadline, state["seconds"])
    last_save = last_print = clock.last
    printed_step, average = state["step"], None
    while (progress := clock.tick()) < 1.0:
        wait_while_paused(args.workdir, clock)
        if spare:
            spare.update()
        ids, targets = (t.to(device) for t in blocks.batch(state["blocks"], args.batch))
        factor = learning_rate(progress, args)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * factor
        loss = loss_of(ids, targets, attention_span(progress, args), args.dtype)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state["step"] += 1
        state["blocks"] += args.batch
        value = loss.item()
        if not math.isfinite(value):
            raise SystemExit(f"loss is {value} at step {state['step']}: lower --muon-lr or --adam-lr")
        average = value if average is None else 0.97 * average + 0.03 * value
        clock.tick()
        state["seconds"] = clock.used
        if clock.last - last_print > args.print_seconds:
            rate = (state["step"] - printed_step) * args.batch * args.positions / (clock.last - last_print)
            print(f"step {state['step']} progress {progress:.3f} loss {average:.4f} train bpb "
                  f"{average / math.log(2) / bytes_per_token:.4f} lr {factor:.3f} {rate:.0f} tokens/s "
                  f"{torch.get_num_threads()} threads", flush=True)
            last_print, printed_step = clock.last, state["step"]
        if clock.last - last_save > args.save_seconds:
            save_checkpoint(checkpoint, model, optimizers, state)
            report()
            clock.tick()
            last_save = last_print = clock.last
            printed_step = state["step"]
    save_checkpoint(checkpoint, model, optimizers, state)
    report()
    return model, state


# -------------------------------------------------------------------------------------------------------- export

def export(model: Opt, tokenizer_folder: Path, output: Path) -> None:
    from transformers import OPTConfig, OPTForCausalLM

    shape = model.shape
    config = OPTConfig(vocab_size=shape["vocab"], hidden_size=shape["width"], word_embed_proj_dim=shape["width"],
                       ffn_dim=4 * shape["width"], num_hidden_layers=shape["layers"],
                       num_attention_heads=shape["heads"], max_position_embeddings=shape["positions"],
                       do_layer_norm_before=True, activation_function="relu", dropout=0.0, attention_dropout=0.0,
                       layerdrop=0.0, bos_token_id=BOS, eos_token_id=BOS, pad_token_id=PAD, tie_word_embeddings=True)
    theirs = OPTForCausalLM(config)
    tensors = {name: tensor.to(torch.float16) for name, tensor in model.exported().items()}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise SystemExit(f"{name} does not fit fp16")
    theirs.half().load_state_dict(tensors | {"lm_head.weight": tensors["model.decoder.embed_tokens.weight"]})
    theirs.tie_weights()
    theirs.save_pretrained(output, safe_serialization=True)
    (output / "model.safetensors").chmod(0o644)
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(tokenizer_folder / name, output / name)
    write_tokenizer_config(output, shape["positions"])


@torch.no_grad()
def measure(folder: Path, valid: np.ndarray, valid_bytes: int, device, batch: int = 8) -> dict:
    """Loss of the exported weights, upcast to fp32, on the whole validation text in windows that begin with </s>."""
    from transformers import OPTForCausalLM

    model = OPTForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    length = model.config.max_position_embeddings
    per_window = length - 1  # the first token of a window is </s>
    windows = [valid[begin:begin + per_window] for begin in range(0, len(valid), per_window)]
    full = [w for w in windows if len(w) == per_window]
    total, rows = 0.0, []
    for group in [full[i:i + batch] for i in range(0, len(full), batch)] + [[w] for w in windows[len(full):]]:
        ids = F.pad(torch.from_numpy(np.stack(group).astype(np.int64)), (1, 0), value=BOS).to(device)
        logits = model(ids).logits[:, :-1]
        losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(group), -1)
        total += losses.double().sum().item()
        if losses.shape[1] == per_window:
            rows.append(losses.cpu())
    losses = torch.cat(rows).double().numpy()  # column i is the loss of the token at position i + 1
    early, late = losses[:, 63:127].mean(1), losses[:, 511:].mean(1)

    def mean_and_error(x):
        return [float(x.mean()), float(x.std(ddof=1) / math.sqrt(len(x)))]

    return {"bits_per_byte": total / math.log(2) / valid_bytes, "nats_per_token": total / len(valid),
            "tokens": len(valid), "bytes": valid_bytes, "windows": len(losses),
            "loss_64_127": mean_and_error(early), "loss_512_1023": mean_and_error(late),
            "late_minus_early": mean_and_error(late - early)}


def samples(folder: Path, prompts: list[str], device, tokens: int = 120) -> list[str]:
    from transformers import AutoTokenizer, OPTForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = OPTForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    torch.manual_seed(0)
    texts = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids.to(device)
        if ids[0, 0] != BOS or (ids[0, 1:] == BOS).any():
            raise SystemExit(f"the tokenizer in {folder} does not put </s> in front, once: {ids[0].tolist()}")
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=True,
                             temperature=0.8, top_k=40)
        texts.append(tokenizer.decode(out[0], skip_special_tokens=True))
    return texts


# ---------------------------------------------------------------------------------------------------------- main

def parse_deadline(text: str) -> float:
    """Seconds since the epoch of the next HH:MM on this machine's clock."""
    hour, minute = map(int, text.split(":"))
    at = datetime.now().replace(hour=hour, minute=minute, second=0, microsecond=0)
    return (at if at > datetime.now() - timedelta(hours=12) else at + timedelta(days=1)).timestamp()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--train", type=Path, nargs="+", required=True, help="training texts, .txt or .txt.xz, UTF-8")
    add("--valid", type=Path, nargs="+", required=True, help="validation texts")
    add("--workdir", type=Path, default=Path("build/train"), help="token files and checkpoints")
    add("--output", type=Path, default=Path("models/demo"), help="the folder written at the end")
    add("--minutes", type=float, default=75.0, help="training time, pauses not counted")
    add("--deadline", type=parse_deadline, help="HH:MM; training also ends by then, pauses or not")
    add("--export-only", action="store_true", help="export and measure the last checkpoint")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--threads", type=int, default=os.cpu_count(), help="CPU threads")
    add("--dtype", type=lambda name: {"float32": torch.float32, "bfloat16": torch.bfloat16}[name],
        default=torch.float32, metavar="{float32,bfloat16}",
        help="of the matrix products; bfloat16 is fast where it is native (AMX, a GPU), and slow elsewhere")
    add("--share", action="store_true", help="use fewer threads while others use the cores; start with nice")
    add("--compile", action="store_true", help="use torch.compile")
    add("--vocab", type=int, default=4096)
    add("--width", type=int, default=256)
    add("--layers", type=int, default=6)
    add("--heads", type=int, default=4)
    add("--positions", type=int, default=1024, help="tokens in a window")
    add("--batch", type=int, default=4, help="windows in a step")
    add("--muon-lr", type=float, default=0.02)
    add("--adam-lr", type=float, default=3e-3)
    add("--weight-decay", type=float, default=0.0, help="for the layers' matrices")
    add("--residual-scale", type=float, default=8.0)
    add("--warmup", type=float, default=0.01, help="part of the run")
    add("--decay-from", type=float, default=0.35, help="part of the run after which the learning rate falls")
    add("--short-span", type=int, default=256, help="attention span at the beginning")
    add("--short-until", type=float, default=0.0, help="part of the run with the short span")
    add("--seed", type=int, default=1)
    add("--print-seconds", type=float, default=15.0)
    add("--save-seconds", type=float, default=180.0)
    add("--quick-windows", type=int, default=32, help="validation windows at each checkpoint")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    args.workdir.mkdir(parents=True, exist_ok=True)

    tokenizer_folder = args.workdir / f"tokenizer-{args.vocab}"
    if not (tokenizer_folder / "merges.txt").exists():
        print("trains the tokenizer", flush=True)
        train_tokenizer(args.train, args.vocab, tokenizer_folder)
    for name, paths in (("train", args.train), ("valid", args.valid)):
        if not (args.workdir / f"{name}.tokens").exists():
            print(f"encodes {name}", flush=True)
            encode(paths, tokenizer_folder, args.workdir / f"{name}.tokens")

    if args.export_only:
        saved = torch.load(args.workdir / "checkpoint.pt", map_location=device, weights_only=True)
        model, state = Opt(saved["shape"]).to(device), saved["state"]
        model.load_state_dict(saved["model"])
    else:
        model, state = train(args, device)
    export(model, tokenizer_folder, args.output)
    valid = np.fromfile(args.workdir / "valid.tokens", dtype=np.uint16)
    result = measure(args.output, valid, int((args.workdir / "valid.bytes").read_text()), device)
    result |= {"steps": state["step"], "training_tokens": state["blocks"] * args.positions,
               "training_seconds": round(state["seconds"]),
               "file_bytes": (args.output / "model.safetensors").stat().st_size}
    print(json.dumps(result, indent=2))
    (args.workdir / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    for text in samples(args.output, ["It was a cold evening in November, and",
                                      '"You must tell me the truth," said the old man,'], device):
        print("-----\n" + text)


if __name__ == "__main__":
    main()
