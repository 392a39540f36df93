"""lm-evaluation-harness (PyPI lm-eval) with weft as its model. The harness looks for models in no other package, so its
command line starts here, and a program that calls simple_evaluate() imports this module before.

    weft-lm-eval run --model weft --model_args model=models/demo,retention=h2o:0.1:0.1 \\
        --tasks TASK [all other arguments of lm_eval]

--model_args: `model`, the checkpoint folder; `weft`, the program (find_program()'s); `max_gen_toks` (256); every other
one is a flag of `weft score` and `weft generate`, such as retention, dtype, policy, machine, device_memory. Each batch of
requests that the harness hands over is one job, so that its requests share passes over the weights; those with a common
prompt share its prefill. Texts become tokens as the model's own tokenizer, through `weft tokenize`, has it. With
--apply_chat_template conversations become texts by the model's own template, which transformers runs.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from .program import find_program, flags_of

LIMITS = "max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"  # names of one argument
NEUTRAL = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1, "use_cache": True, "early_stopping": False}


@register_model("weft")
class Weft(TemplateLM):
    def __init__(self, model, weft=None, max_gen_toks=256, batch_size=None, device=None,
                 max_batch_size=None, **flags):
        """batch_size, device and max_batch_size are the harness's own words: weft plans these itself."""
        super().__init__()
        self.model, self.weft, self.max_gen_toks = Path(model), find_program(weft), int(max_gen_toks)
        self.flags = flags_of(flags)
        config = json.loads((self.model / "config.json").read_text())
        eos = config.get("eos_token_id")
        self._eot = eos[0] if isinstance(eos, list) else eos
        self._bos = config.get("bos_token_id")
        self.max_length = self._context()
        self._tokens = {}  # (text, whether with the first token) -> ids
        self._templates = None  # transformers' tokenizer, once a conversation needs it
        self._add_first = True  # a chat template itself writes the first token, where the model wants one

    def _context(self):
        """The context as weft has it: a sliding window bounds it."""
        done = subprocess.run([self.weft, "inspect", self.model], capture_output=True, text=True)
        found = re.search(r", context (\d+)", done.stdout)
        if done.returncode or not found:
            raise RuntimeError(f"weft inspect: exit code {done.returncode}: {done.stderr.strip()}")
        return int(found[1])

    @property
    def eot_token_id(self):
        return self._eot

    @property
    def prefix_token_id(self):
        first = self.tok_encode("", add_special_tokens=True)  # what the tokenizer puts before every text
        return first[0] if first else self._eot if self._bos is None else self._bos

    @property
    def tokenizer(self):
        if self._templates is None:
            from transformers import AutoTokenizer
            self._templates = AutoTokenizer.from_pretrained(self.model)
        return self._templates

    @property
    def tokenizer_name(self):
        return str(self.model).replace("/", "__")

    def chat_template(self, chat_template=False):
        """The text of the template that is applied, for the harness's records; a name chooses one of several."""
        if chat_template is False or chat_template is None:
            return ""
        return self.tokenizer.get_chat_template(None if chat_template is True else chat_template)

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        """One conversation as a prompt; without a generation prompt its last message is to be continued."""
        import jinja2
        self._add_first = False
        options = {"tokenize": False, "add_generation_prompt": add_generation_prompt,
                   "continue_final_message": not add_generation_prompt}
        try:
            return self.tokenizer.apply_chat_template(chat_history, **options)
        except jinja2.exceptions.TemplateError:  # as the harness does for its own models
            without = [message for message in chat_history if message["role"] != "system"]
            return self.tokenizer.apply_chat_template(without, **options)

    def _run(self, command, lines, *flags):
        """One weft process over `lines`; its results by id, which is the index of the line."""
        with tempfile.TemporaryDirectory(prefix="weft-lm-eval-") as folder:
            requests, results = Path(folder, "requests.jsonl"), Path(folder, "results.jsonl")
            with requests.open("w") as file:
                file.writelines(json.dumps({"id": i, **line}) + "\n" for i, line in enumerate(lines))
            done = subprocess.run([self.weft, command, "--model", self.model, "--input", requests, "--output", results,
                                   *flags], stderr=subprocess.PIPE, text=True)
            if done.returncode:
                raise RuntimeError(f"weft {command}: exit code {done.returncode}: {done.stderr.strip()}")
            with results.open() as file:
                return {result["id"]: result for result in map(json.loads, file)}

    def _tokenize(self, texts, add_special_tokens=None):
        """Remembers the tokens of all texts, by one process."""
        add_special_tokens = self._add_first if add_special_tokens is None else bool(add_special_tokens)
        missing = [text for text in dict.fromkeys(texts) if (text, add_special_tokens) not in self._tokens]
        if not missing:
            return
        results = self._run("tokenize", [{"text": text} for text in missing], *([] if add_special_tokens else ["--no-bos"]))
        for i, text in enumerate(missing):
            self._tokens[text, add_special_tokens] = results[i]["ids"]

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        with_first = self._add_first if add_special_tokens is None else bool(add_special_tokens)
        self._tokenize([string], with_first)
        return self._tokens[string, with_first]

    def loglikelihood(self, requests, disable_tqdm=False):
        pairs = [request.args for request in requests]
        self._tokenize([context.rstrip() for context, _ in pairs if context] + [a + b for a, b in pairs if a])
        self._tokenize([continuation for context, continuation in pairs if not context], add_special_tokens=False)
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(self, requests, **kwargs):
        lines = [{"prompt_ids": context[-(self.max_length - len(continuation)):], "continuation_ids": continuation}
                 for _, context, continuation in requests]
        results = self._run("score", lines, "--quiet", *self.flags)
        answers = [(results[i]["logprob"], all(results[i]["greedy"])) for i in range(len(lines))]
        for (text, _, _), answer in zip(requests, answers):
            if text is not None:
                self.cache_hook.add_partial("loglikelihood", text, answer)
        return answers

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        texts = [request.args[0] for request in requests]
        self._tokenize(texts, add_special_tokens=False)
        windows, owners = [], []
        for owner, text in enumerate(texts):
            for window in get_rolling_token_windows(token_list=self.tok_encode(text, add_special_tokens=False),
                                                    prefix_token=self.prefix_token_id, max_seq_len=self.max_length - 1,
                                                    context_len=1):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(owner)
        sums = [0.0] * len(texts)
        for owner, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows)):
            sums[owner] += logprob
        return sums

    def _limit(self, options):
        """The most tokens to generate, by whichever of the harness's names a task uses."""
        given = [options.pop(name, None) for name in LIMITS]
        limit = next((int(value) for value in given if value is not None), self.max_gen_toks)
        if not 0 < limit < self.max_length:
            raise ValueError(f"{limit} tokens are to be generated, and the model's context is {self.max_length}; "
                             "give a smaller max_gen_toks")
        return limit

    def generate_until(self, requests, disable_tqdm=False):
        self._tokenize([request.args[0] for request in requests])
        lines = []
        for request in requests:
            context, options = request.args[0], dict(request.args[1])
            until, limit = options.pop("until", []), self._limit(options)
            sample = options.pop("do_sample", True)
            line = {"prompt_ids": self.tok_encode(context)[-(self.max_length - limit):], "max_tokens": limit,
                    "stop": [until] if isinstance(until, str) else until}
            for name in ("temperature", "top_p", "top_k"):
                if name in options and sample:
                    line[name] = options.pop(name)
                options.pop(name, None)
            unknown = {name: value for name, value in options.items() if NEUTRAL.get(name) != value}
            if unknown:
                raise ValueError(f"weft does not know the generation arguments {unknown}")
            lines.append(line)
        results = self._run("generate", lines, "--quiet", *self.flags)
        answers = [results[i]["text"] for i in range(len(lines))]
        for request, answer in zip(requests, answers):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers


def main():
    """The command weft-lm-eval."""
    cli_evaluate()


if __name__ == "__main__":
    main()
