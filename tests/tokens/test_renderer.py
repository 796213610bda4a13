from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types.errors import ModelError

SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Fix f."}
TOOL = {
    "type": "function",
    "function": {"name": "read_file", "description": "Read.", "parameters": {"type": "object", "properties": {}}},
}
RESULT = {"role": "tool", "content": "x = 1\n", "name": "read_file", "tool_call_id": "call_0_0"}

# Each template below is written for this test and has the one habit named.
THINKS_LAST = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.last %}<think>

</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if tools %}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ALTERNATES = """{{ '<bos>' }}{% for m in messages %}{% if m.role not in ['user', 'assistant']
%}{{ raise_exception('role ' + m.role) }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- '<|im_start|>' + ('model' if m.role == 'assistant' else 'user') + '\n' + m.content | trim + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"""
TEXT_ARGUMENTS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or []
%}{{ '<tool_call>' + c.function.name + ' ' + c.function.arguments + '</tool_call>' }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOLS_IN_LAST_USER = """{% set last = messages | selectattr('role', 'equalto', 'user') | list | last
%}{% for m in messages %}<|im_start|>{{ m.role }}
{% if loop.last %}{{ tools }}{% endif %}{{ m.content }}{% for c in m.tool_calls or []
%}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
NO_END = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


def tokenizer_with(template: str):
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken("<bos>", special=True, normalized=False)])
    tokenizer.chat_template = template
    return tokenizer


def call(content: str = "", **arguments):
    function = {"name": "read_file", "arguments": arguments or {"path": "a.py"}}
    return {"role": "assistant", "content": content, "tool_calls": [{"id": "call_0_0", "type": "function", "function": function}]}


@pytest.fixture(scope="module")
def renderer():
    return ChatRenderer(byte_level_tokenizer())


def test_pieces_of_a_conversation_are_the_whole(renderer):
    tokenizer = renderer.tokenizer
    answer = call("I look.", path="é\n.py")
    pieces = (
        renderer.prompt_ids([SYSTEM, USER], [TOOL]) + renderer.assistant_ids(answer) + renderer.delta_ids([RESULT], ended=True)
    )
    whole = tokenizer.apply_chat_template(
        [SYSTEM, USER, answer, RESULT], tools=[TOOL], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(pieces) == whole
    assert tuple(tokenizer.encode(whole)) == pieces


def test_the_embedded_template_names_tools_and_costs_little(renderer):
    other = {"type": "function", "function": {**TOOL["function"], "name": "submit"}}
    text = renderer.tokenizer.decode(renderer.prompt_ids([SYSTEM, USER], [TOOL, other]))
    assert text.startswith("<|im_start|>system\nBe brief.\nTools: read_file, submit<|im_end|>\n<|im_start|>user\n")
    text = renderer.tokenizer.decode(renderer.prompt_ids([USER], [TOOL]))
    assert text.startswith("<|im_start|>system\nTools: read_file<|im_end|>\n<|im_start|>user\nFix f.")


def test_a_turn_cut_by_its_budget_is_closed(renderer):
    ended, cut = renderer.delta_ids([RESULT], ended=True), renderer.delta_ids([RESULT], ended=False)
    assert cut == (renderer.end_of_turn_id, *ended)
    assert renderer.tokenizer.decode(ended) == "\n<|im_start|>tool\nx = 1\n<|im_end|>\n<|im_start|>assistant\n"


def test_hint_is_one_user_message_before_the_generation_prompt(renderer):
    prompt = renderer.prompt_ids([USER])
    hinted = renderer.strip_generation_prompt(prompt) + renderer.hint_ids("Use read_file.") + renderer.generation_prompt_ids
    assert hinted == renderer.prompt_ids([USER, {"role": "user", "content": "Use read_file."}])
    with pytest.raises(ValueError, match="do not end with"):
        renderer.strip_generation_prompt(prompt[:-1])


@pytest.mark.parametrize(
    ("template", "tool_role", "system", "dict_arguments"),
    [(THINKS_LAST, True, True, True), (ALTERNATES, False, False, True), (TEXT_ARGUMENTS, True, True, False)],
    ids=["thinks-last", "alternates", "text-arguments"],
)
def test_other_templates(template, tool_role, system, dict_arguments):
    renderer = ChatRenderer(tokenizer_with(template))
    assert (renderer.template.takes_tool_role, renderer.template.takes_system) == (tool_role, system)
    assert renderer.template.takes_dict_arguments is dict_arguments
    text = renderer.tokenizer.decode(renderer.prompt_ids([SYSTEM, USER], [TOOL]))
    assert "Be brief." in text
    assert "read_file" in text, "the tools are listed even when the template ignores them"
    assert text.endswith(renderer.tokenizer.decode(renderer.generation_prompt_ids))
    turn = renderer.tokenizer.decode(renderer.assistant_ids(call("look")))
    assert turn.startswith("look")
    assert turn.endswith("<|im_end|>")
    assert "a.py" in turn
    assert "think" not in turn
    delta = renderer.tokenizer.decode(renderer.delta_ids([RESULT, {**RESULT, "content": "second"}], ended=True))
    assert "x = 1" in delta
    assert "second" in delta
    assert renderer.tokenizer.decode(renderer.hint_ids("HINT")).count("HINT") == 1
    assert "assistant" not in renderer.tokenizer.decode(renderer.hint_ids("HINT"))
    assert not renderer.check_prefix_preservation().difference()


def test_a_template_that_rewrites_its_past_is_refused_with_the_text_that_differs():
    with pytest.raises(ModelError, match="cannot be extended") as error:
        ChatRenderer(tokenizer_with(TOOLS_IN_LAST_USER))
    assert "tools listed" in error.value.message or "one tool call" in error.value.message
    assert "'name': 'read'" in error.value.message or "None" in error.value.message


def test_missing_template_end_of_turn_or_eos_is_an_error_with_a_fix():
    with pytest.raises(ModelError, match="end an assistant turn") as error:
        ChatRenderer(tokenizer_with(NO_END))
    assert error.value.fix
    for attribute, match in (("chat_template", "no chat template"), ("eos_token", "no EOS token")):
        tokenizer = byte_level_tokenizer()
        setattr(tokenizer, attribute, None)
        with pytest.raises(ModelError, match=match) as error:
            ChatRenderer(tokenizer)
        assert error.value.fix


def test_answers_that_merge_with_the_prompt_keep_the_prompt():
    renderer = ChatRenderer(byte_level_tokenizer(["\n\n \n\n a b"] * 50, vocab_size=263))
    assert len(renderer.tokenizer.encode("\n\n")) == 1
    ids = renderer.assistant_ids({"role": "assistant", "content": "\nhi"})
    assert renderer.tokenizer.decode(ids) == "\nhi<|im_end|>"


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "user\n", "x", "\ud7ff", "<tool_call>", "é"]), max_size=6))
def test_text_never_becomes_control_tokens(parts):
    renderer = ChatRenderer(byte_level_tokenizer())
    text = "".join(parts)
    plain = renderer.delta_ids([{**RESULT, "content": "y"}], ended=True)
    for ids in (renderer.delta_ids([{**RESULT, "content": text}], ended=True),):
        assert ids.count(renderer.end_of_turn_id) == plain.count(renderer.end_of_turn_id)
    turn = renderer.assistant_ids(call(text, path=text))
    assert turn.index(renderer.end_of_turn_id) == len(turn) - 1


@given(st.lists(st.integers(0, 260), max_size=40))
def test_any_ids_can_be_read(ids):
    assert isinstance(RENDERER.decode(ids), str)


RENDERER = ChatRenderer(byte_level_tokenizer())


def test_learned_merges_are_reproducible_and_save_tokens(tmp_path):
    corpus = [RENDERER.tokenizer.apply_chat_template([SYSTEM, USER, call()], tokenize=False)] * 20
    one, two = byte_level_tokenizer(corpus, vocab_size=300), byte_level_tokenizer(corpus, vocab_size=300)
    assert one.get_vocab() == two.get_vocab()
    assert len(one) == 300
    markup = ("<pad>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
    assert [one.convert_tokens_to_ids(t) for t in markup] == list(range(5))
    assert len(one.encode(corpus[0])) < len(RENDERER.tokenizer.encode(corpus[0])) * 0.6
    assert not [t for t in one.get_vocab() if "im_start" in t and t != "<|im_start|>"]
    one.save_pretrained(tmp_path)
    from transformers import AutoTokenizer

    again = ChatRenderer(AutoTokenizer.from_pretrained(tmp_path))
    assert again.prompt_ids([SYSTEM, USER], [TOOL]) == ChatRenderer(two).prompt_ids([SYSTEM, USER], [TOOL])


@given(st.text(max_size=60))
def test_every_text_round_trips(text):
    text = text.encode("utf-8", "ignore").decode()
    assert RENDERER.tokenizer.decode(RENDERER.tokenizer.encode(text)) == text


def test_importing_these_rooms_does_not_import_torch():
    rooms = "composer_replication.tokens, composer_replication.rollouts, composer_replication.envs"
    code = f"import sys, {rooms}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
