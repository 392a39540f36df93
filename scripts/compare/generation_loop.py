"""What the programs that compare with transformers share: greedy generation by its models, timed, and rates from such times;
and the greedy answer to a line of a request file."""
import contextlib
import time


def generate(model, config, batch, prompt_len, steps, device):
    """Seconds and tokens of a prefill and of steps - 1 decode steps over random prompts. The same for whoever places or
    moves the model's weights."""
    import torch

    def now():
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    random = torch.Generator().manual_seed(1)
    ids = torch.randint(4, config.vocab_size, (batch, prompt_len), generator=random).to(device)
    with torch.inference_mode():
        begin = now()
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        token, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
        first = now()
        del out
        for _ in range(steps - 1):
            out = model(input_ids=token, past_key_values=cache, use_cache=True)
            token, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
        end = now()
    return {
        "prefill_seconds": first - begin,
        "decode_seconds": end - first,
        "decode_tokens": batch * (steps - 1),
        "prompt_tokens": batch * prompt_len,
    }


def answer(model, tokenizer, cache, line, around_prompt=contextlib.nullcontext()):
    """The text of a greedy answer to line["prompt"], whose keys and values a cache gets that may keep fewer tokens."""
    import torch

    ids = tokenizer(line["prompt"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        with around_prompt:
            logits = model(ids, past_key_values=cache, logits_to_keep=1).logits
        tokens = []
        for step in range(line["max_tokens"]):
            token = logits[0, -1].argmax().item()
            if token == tokenizer.eos_token_id:
                break
            tokens.append(token)
            logits = model(torch.tensor([[token]]), past_key_values=cache, position_ids=torch.tensor([[ids.shape[1] + step]])).logits
    return tokenizer.decode(tokens)


def largest_that_fits(model, config, batches, prompt_len, steps, device):
    """generate() with the first of `batches` for which there is memory, and which that was."""
    import torch

    for batch in batches:
        try:
            if len(batches) > 1:
                generate(model, config, batch, prompt_len, 2, device)  # warms up, and finds out
            else:
                generate(model, config, 1, 8, 1, device)
            return generate(model, config, batch, prompt_len, steps, device) | {"batch": batch}
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
    raise SystemExit(f"not even a batch of {batches[-1]} fits")


def rates(times, batch, gen_len):
    """Tokens a second of decode and prefill, and of a whole run of gen_len tokens at these rates."""
    decode = times["decode_tokens"] / times["decode_seconds"]
    prefill = times["prompt_tokens"] / times["prefill_seconds"]
    total = batch * gen_len / (times["prefill_seconds"] + batch * (gen_len - 1) / decode)
    return {"decode": decode, "prefill": prefill, "total": total}
