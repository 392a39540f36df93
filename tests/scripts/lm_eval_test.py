#!/usr/bin/env python3
"""scripts/evaluate/lm_eval_weft.py as the harness calls it, without the harness: conversations become prompts by the model's chat
template, with no second first token, and are answered as weft's own chat requests are.

Usage: lm_eval_test.py WEFT_BINARY SOURCE_FOLDER
"""

import importlib.util
import json
import pathlib
import shutil
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from weft_process import Weft, read_lines, write_lines, write_tiny_model  # noqa: E402

WEFT = SOURCE = None
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


class TemplateError(Exception):
    pass


class FakeTokenizer:
    """transformers' part: ChatML, for a model that takes no system message where `strict`."""

    strict = False

    @classmethod
    def from_pretrained(cls, folder):
        assert (pathlib.Path(folder) / "tokenizer_config.json").exists()
        return cls()

    def get_chat_template(self, name=None):
        return "{{ named }}" if name else "{{ default }}"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, continue_final_message):
        assert tokenize is False and add_generation_prompt != continue_final_message
        if self.strict and messages[0]["role"] == "system":
            raise TemplateError("no system role")
        turns = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
        if continue_final_message:
            turns[-1] = turns[-1].removesuffix("<|im_end|>\n")
        return "".join(turns) + ("<|im_start|>assistant\n" if add_generation_prompt else "")


def fake_modules():
    """What the adapter takes of lm-eval, jinja2 and transformers."""

    class TemplateLM:
        def __init__(self):
            self.cache_hook = mock.Mock()

        def loglikelihood(self, requests, disable_tqdm=False):
            pairs = []
            for request in requests:
                context, continuation = request.args
                whole, first = self.tok_encode(context + continuation), self.tok_encode(context)
                pairs.append(((context, continuation), first, whole[len(first):]))
            return self._loglikelihood_tokens(pairs)

    module = lambda **names: types.SimpleNamespace(__spec__=None, **names)  # noqa: E731
    return {"lm_eval": module(), "lm_eval.__main__": module(cli_evaluate=None), "lm_eval.api": module(),
            "lm_eval.api.model": module(TemplateLM=TemplateLM),
            "lm_eval.api.registry": module(register_model=lambda name: lambda cls: cls),
            "lm_eval.utils": module(get_rolling_token_windows=None, make_disjoint_window=None),
            "jinja2": module(exceptions=module(TemplateError=TemplateError)), "transformers": module(AutoTokenizer=FakeTokenizer)}


class Request:
    def __init__(self, *args):
        self.args = args


class ChatTemplates(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-lm-eval-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = self.folder / "demo"
        shutil.copytree(SOURCE / "models" / "demo", self.model)
        (self.model / "chat_template.jinja").write_text(CHATML)
        (self.model / "tokenizer_config.json").touch(exist_ok=True)
        if not (self.model / "tokenizer_config.json").read_text():
            (self.model / "tokenizer_config.json").write_text("{}")
        self.enterContext(mock.patch.dict(sys.modules, fake_modules()))
        spec = importlib.util.spec_from_file_location("lm_eval_weft", SOURCE / "scripts" / "evaluate" / "lm_eval_weft.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.lm = module.Weft(self.model, weft=WEFT.binary, max_gen_toks=12, backend="cpu")

    def test_a_conversation_is_answered_as_a_chat_request(self):
        chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        prompt = self.lm.apply_chat_template(chat)
        self.assertEqual(prompt, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
                                 "<|im_start|>assistant\n")
        (answer,) = self.lm.generate_until([Request(prompt, {"max_gen_toks": 12, "do_sample": False})])
        write_lines(self.folder / "in.jsonl", [{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body":
                                                {"model": "demo", "messages": chat, "max_tokens": 12, "temperature": 0}}])
        done = WEFT.run("generate", "--model", self.model, "--input", self.folder / "in.jsonl", "--output",
                        self.folder / "out.jsonl", "--backend", "cpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        body = read_lines(self.folder / "out.jsonl")[0]["response"]["body"]
        self.assertEqual(answer, body["choices"][0]["message"]["content"])
        self.assertEqual(len(self.lm.tok_encode(prompt)), body["usage"]["prompt_tokens"])
        self.assertEqual(len(self.lm.tok_encode(prompt, add_special_tokens=True)), body["usage"]["prompt_tokens"] + 1)

    def test_the_context_is_wefts(self):
        config = json.loads((self.model / "config.json").read_text())
        self.assertEqual(self.lm.max_length, config["max_position_embeddings"])
        write_tiny_model(self.folder / "longrope")
        (self.folder / "longrope" / "config.json").write_text(json.dumps(
            {"model_type": "phi3", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 2, "intermediate_size": 32, "vocab_size": 64, "max_position_embeddings": 512,
             "original_max_position_embeddings": 64,
             "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [2, 2, 2, 2]}}))
        self.lm.model = self.folder / "longrope" / "config.json"
        self.assertEqual(self.lm._context(), 64)

    def test_generation_arguments(self):
        requests = [Request("It was", {name: 3, "do_sample": False, "num_beams": 1})
                    for name in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")]
        answers = self.lm.generate_until(requests)
        self.assertEqual(len(set(answers)), 1)
        for options, words in [({"num_beams": 4}, "num_beams"), ({"max_gen_toks": 1 << 20}, "the model's context is")]:
            with self.assertRaisesRegex(ValueError, words):
                self.lm.generate_until([Request("It was", options)])

    def test_without_a_template_prompts_keep_their_first_token(self):
        self.assertEqual(self.lm.tok_encode("Hello")[0], 2)
        self.assertEqual(self.lm.prefix_token_id, 2)
        self.assertEqual(self.lm.chat_template(False), "")

    def test_log_probabilities_of_answers(self):
        prompt = self.lm.apply_chat_template([{"role": "user", "content": "Hello"}])
        answers = self.lm.loglikelihood([Request(prompt, " yes"), Request(prompt, " no")])
        self.assertEqual(len(answers), 2)
        self.assertTrue(all(logprob < 0 for logprob, _ in answers))

    def test_a_message_that_is_continued(self):
        chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Well"}]
        self.assertTrue(self.lm.apply_chat_template(chat, add_generation_prompt=False).endswith("<|im_start|>assistant\nWell"))

    def test_a_template_that_refuses_system_messages(self):
        with mock.patch.object(FakeTokenizer, "strict", True):
            prompt = self.lm.apply_chat_template([{"role": "system", "content": "x"}, {"role": "user", "content": "Hello"}])
        self.assertTrue(prompt.startswith("<|im_start|>user\nHello"))

    def test_what_the_harness_records(self):
        self.assertEqual(self.lm.chat_template(True), "{{ default }}")
        self.assertEqual(self.lm.chat_template("rag"), "{{ named }}")
        self.assertTrue(self.lm.tokenizer_name.endswith("__demo"))


if __name__ == "__main__":
    WEFT, SOURCE = Weft(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
