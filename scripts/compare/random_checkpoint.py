"""A checkpoint of a shape with random weights in float16, written with nothing but Python: model.safetensors and its
config.json. OPT and LLaMA, which differ in their tensors only."""
import array
import json
import pathlib
import random
import struct

POOL = 1_000_003  # random numbers, over and over; a prime, so that no two rows are alike


def opt_tensors(shape):
    width, inner = shape["hidden_size"], shape["ffn_dim"]
    prefix = "model.decoder."
    yield prefix + "embed_tokens.weight", [shape["vocab_size"], width]
    yield prefix + "embed_positions.weight", [shape["max_position_embeddings"] + 2, width]
    for layer in range(shape["num_hidden_layers"]):
        names = {f"self_attn.{part}_proj": [width, width] for part in "kvq"} | {"self_attn.out_proj": [width, width]}
        names |= {"self_attn_layer_norm": [width], "fc1": [inner, width], "fc2": [width, inner],
                  "final_layer_norm": [width]}
        for name, size in names.items():
            yield f"{prefix}layers.{layer}.{name}.weight", size
            yield f"{prefix}layers.{layer}.{name}.bias", size[:1]
    yield prefix + "final_layer_norm.weight", [width]
    yield prefix + "final_layer_norm.bias", [width]


def llama_tensors(shape):
    width, inner = shape["hidden_size"], shape["intermediate_size"]
    kv = width // shape["num_attention_heads"] * shape["num_key_value_heads"]
    yield "model.embed_tokens.weight", [shape["vocab_size"], width]
    for layer in range(shape["num_hidden_layers"]):
        names = {"input_layernorm": [width], "self_attn.q_proj": [width, width], "self_attn.k_proj": [kv, width],
                 "self_attn.v_proj": [kv, width], "self_attn.o_proj": [width, width],
                 "post_attention_layernorm": [width], "mlp.gate_proj": [inner, width], "mlp.up_proj": [inner, width],
                 "mlp.down_proj": [width, inner]}
        for name, size in names.items():
            yield f"model.layers.{layer}.{name}.weight", size
    yield "model.norm.weight", [width]
    yield "lm_head.weight", [shape["vocab_size"], width]


def tensors_of(shape):
    return list({"opt": opt_tensors, "llama": llama_tensors}[shape["model_type"]](shape))


def count(size):
    return size[0] * (size[1] if len(size) > 1 else 1)


def halves(value, times):
    return struct.pack("<e", value) * times


def write_checkpoint(folder, shape):
    """Does nothing if the folder has one; a checkpoint that was not finished is begun anew."""
    folder = pathlib.Path(folder)
    if (folder / "config.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(1)
    pool = b"".join(struct.pack("<e", source.gauss(0, 0.02)) for _ in range(POOL))
    pool = memoryview(array.array("B", pool * 2))
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, size in tensors_of(shape):
        end = offset + 2 * count(size)
        header[name] = {"dtype": "F16", "shape": size, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    at = 0
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, size in tensors_of(shape):
            left = 2 * count(size)
            if "norm" in name or name.endswith("bias"):
                file.write(halves(0.0 if name.endswith("bias") else 1.0, left // 2))
                continue
            while left:
                part = min(left, 2 * POOL)
                file.write(pool[at : at + part])
                at, left = (at + part) % (2 * POOL), left - part
    (folder / "config.json").write_text(json.dumps(shape, indent=1) + "\n")
