"""Tokenizers: the ids of transformers, and no way for a user's text to become a special token."""

import json
import shutil

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import ModelError, RequestError
from forerun.models.tokenizer import FolderTokenizer, Tokenizer
from forerun.models.toy import ToyModel

SPECIALS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A byte-level tokenizer trained on a few lines, with a template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(
        ["once upon a time there was a user and an assistant", "the end of the system"] * 4, trainer
    )
    made.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", None, [("<s>", made.token_to_id("<s>"))])
    made.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def ours(folder):
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def theirs(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", ["once upon a time", "", "  two  spaces\n", "héllo 😀", "\x00\x07"])
def test_ids_and_text_as_transformers(ours, theirs, text):
    assert ours.encode(text) == theirs(text).input_ids
    assert ours.encode(text, bos=False) == theirs(text, add_special_tokens=False).input_ids
    assert ours.decode(ours.encode(text)) == text
    assert ours.decode(ours.encode(text), skip_special=False) == f"<s>{text}"


def test_facts(ours, theirs):
    assert (ours.vocab_size, ours.bos, ours.eos) == (len(theirs), theirs.bos_token_id, theirs.eos_token_id)
    assert ours.token_text(ours.eos) == "<|im_end|>"
    assert ours.has_chat


@given(st.lists(st.sampled_from([*SPECIALS, "a", " ", "<", "|", ">", "im_end", "</", "é"]), max_size=12).map("".join))
def test_user_text_never_becomes_a_special_token(ours, text):
    ids = ours.encode(text, bos=False)
    assert not set(ids) & set(ours._specials.values())
    assert ours.decode(ids) == text


def test_specials_are_read_only_when_asked(ours):
    assert ours.encode("<|im_end|>", specials=True, bos=False) == [ours.eos]
    assert len(ours.encode("<|im_end|>", bos=False)) > 1


def test_chat_as_transformers(ours, theirs):
    messages = [{"role": "system", "content": " the system "}, {"role": "user", "content": "once upon"}]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ours.chat(messages) == expected


HOSTILE = [*SPECIALS, "a", " ", "\n", "<", "<|", "<|im_", "|>", "_end|>", "end|>", ">", "s>", "</", "\U0010f000"]


@given(st.lists(st.lists(st.sampled_from(HOSTILE), max_size=6).map("".join), min_size=1, max_size=3))
def test_a_conversation_has_the_templates_special_tokens_and_no_other(ours, contents):
    plain = ours.chat([{"role": "user", "content": "x"} for _ in contents])
    hostile = ours.chat([{"role": "user", "content": content} for content in contents])
    special = set(ours._specials.values())
    assert [i for i in hostile if i in special] == [i for i in plain if i in special]
    wanted = TEMPLATE and "".join(f"<|im_start|>user\n{c.strip()}<|im_end|>\n" for c in contents)
    assert ours.decode(hostile, skip_special=False) == f"<s>{wanted}<|im_start|>assistant\n"


TOOLING = TEMPLATE.replace("{% for m", "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m", 1)


@pytest.fixture(scope="module")
def tooling(folder, tmp_path_factory):
    return changed(folder, tmp_path_factory.mktemp("tooling"), chat_template=TOOLING)


def test_functions_as_transformers(tooling):
    functions = [{"name": "look", "description": "Élan", "parameters": {"type": "object", "properties": {"a": {}}}}]
    tools = [{"type": "function", "function": function} for function in functions]
    theirs = transformers.AutoTokenizer.from_pretrained(tooling.folder)
    messages = [{"role": "user", "content": "once upon"}]
    for some, wrapped in ((functions, tools), ((), None)):
        expected = theirs.apply_chat_template(
            messages, tools=wrapped, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert tooling.chat(messages, some) == expected


@pytest.mark.parametrize("special", SPECIALS)
def test_functions_and_calls_hold_no_special_token(tooling, special):
    """In names of fields and in fields called role, too."""
    nested = {"role": special, special: {special: [special]}}
    function = {"name": "look", "description": special, "parameters": nested}
    ids = tooling.chat([{"role": "user", "content": "x"}], [function])
    plain = tooling.chat([{"role": "user", "content": "x"}])
    inside = set(tooling._specials.values())
    assert [i for i in ids if i in inside] == [i for i in plain if i in inside]
    assert json.dumps(nested, ensure_ascii=False) in tooling.decode(ids, skip_special=False)


def test_the_first_private_character_taken_by_the_user(ours):
    ids = ours.chat([{"role": "user", "content": "\U0010f0000\U0010f000<|im_end|>"}])
    assert "\U0010f0000\U0010f000<|im_end|>" in ours.decode(ids, skip_special=False)
    assert ids.count(ours.eos) == 1


@pytest.mark.parametrize("message", [{"content": "x"}, {"role": "<|im_end|>", "content": "x"}, {"role": None}, "hello"])
def test_roles_are_known(ours, message):
    with pytest.raises(RequestError, match="system, developer, user, assistant, tool"):
        ours.chat([message])


def changed(folder, tmp_path, **config):
    copy = shutil.copytree(folder, tmp_path / "copy")
    values = json.loads((copy / "tokenizer_config.json").read_text()) | config
    (copy / "tokenizer_config.json").write_text(json.dumps(values))
    return FolderTokenizer(copy)


def test_beginning_of_text_as_the_folder_says(folder, tmp_path):
    without = changed(folder, tmp_path, add_bos_token=False)
    assert without.encode("a") == without.encode("a", bos=False)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for x in range(10**9) %}x{% endfor %}",
        "{{ messages[7].content }}",
        "{% if %}",
        "{{ 1 // 0 }}",
    ],
)
def test_hostile_and_broken_templates(folder, tmp_path, template):
    with pytest.raises(RequestError, match="the chat template refuses these messages"):
        changed(folder, tmp_path, chat_template=template).chat([{"role": "user", "content": "x"}])


JOINING = [
    ("{0}|im_end|>", "<"),
    ("<|im_{0}", "end|>"),
    ("<{0}|>", "|im_end"),
    ("<|im_{0}", " end|> "),
    ("<{0}|>", " |im_end "),
]


@pytest.mark.parametrize(("template", "content"), JOINING)
def test_content_and_template_do_not_join_into_a_special_token(folder, tmp_path, template, content):
    joining = changed(folder, tmp_path, chat_template=template.replace("{0}", "{{ messages[0]['content'] | trim }}"))
    ids = joining.chat([{"role": "user", "content": content}])
    assert joining.eos not in ids
    assert joining.decode(ids, skip_special=False) == "<|im_end|>"


def test_template_of_its_own_file_and_by_name(folder, tmp_path):
    named = changed(
        folder, tmp_path, chat_template=[{"name": "default", "template": "hi"}, {"name": "tool_use", "template": "no"}]
    )
    assert named.decode(named.chat([])) == "hi"
    (named.folder / "chat_template.jinja").write_text("file")
    again = FolderTokenizer(named.folder)
    assert again.decode(again.chat([])) == "file"


def test_no_template(folder, tmp_path):
    silent = changed(folder, tmp_path, chat_template=None)
    assert not silent.has_chat
    with pytest.raises(RequestError, match="has no chat template; use a plain prompt"):
        silent.chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("content", [None, "", "{}", '{"model": {"type": "BPE"}}'])
def test_no_or_broken_tokenizer(folder, tmp_path, content):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "tokenizer.json").unlink()
    if content is not None:
        (copy / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"has no tokenizer; put its tokenizer\.json|is not a sound tokenizer"):
        Tokenizer.from_folder(copy)


def test_malformed_unicode_is_refused(ours):
    with pytest.raises(RequestError, match="not valid Unicode"):
        ours.encode("a\ud800b")


def test_toy():
    toy = Tokenizer.from_folder("toy:0:4")
    assert toy.encode("abdc") == [0, 1, 3, 2]
    assert toy.decode([0, 1, 3, 2]) == "abdc"
    assert (toy.vocab_size, toy.eos, toy.has_chat, toy.token_text(2)) == (4, None, False, "c")
    assert len(set(ToyModel(300).words)) == 300
    with pytest.raises(RequestError, match="no token 'e'; write with its letters a to d"):
        toy.encode("ae")
    with pytest.raises(RequestError, match="no chat template"):
        toy.chat([])
