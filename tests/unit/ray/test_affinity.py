"""A request goes where its session or its prompt's start was before; what differs in tenant has nothing in common."""

from forerun.ray.affinity import BLOCK, BLOCKS, Memory, keys_of, much_busier

LONG = "".join(f"{i} word " for i in range(2 * BLOCK))


def keys(body, tenant="", session=""):
    return keys_of(tenant, session, body)


def test_a_session_comes_first():
    found = keys({"prompt": LONG, "user": "me"})
    assert found[0] == keys({"prompt": "short", "user": "me"})[0]
    assert found[1:] == keys({"prompt": LONG})
    assert keys({"prompt": "short"}, session="me") == found[:1]
    assert keys({"prompt": "short", "prompt_cache_key": "me", "user": "other"}) == found[:1]
    assert keys({"prompt": "short"}) == ()
    assert keys({}) == keys({"prompt": None}) == keys({"prompt": "x", "user": 7}) == ()


def test_starts_are_common_as_far_as_texts_are():
    """The longest common start, in blocks, is the first key that both have."""
    one, other = keys({"prompt": LONG}), keys({"prompt": LONG[: 3 * BLOCK] + "another end" * BLOCK})
    assert len([key for key in one if key in other]) == 3
    assert one[-3:] == other[-3:]
    assert len(keys({"prompt": "x" * BLOCK * (BLOCKS + 9)})) == BLOCKS
    turns = [{"role": "user", "content": LONG}]
    more = [*turns, {"role": "assistant", "content": LONG}]
    assert keys({"messages": turns})[1:] == keys({"messages": more})[-len(keys({"messages": turns})) + 1 :]


def test_tenants_have_nothing_in_common():
    asked = {"prompt": LONG, "user": "me"}
    assert not set(keys(asked, "a")) & set(keys(asked, "b"))


def test_the_most_telling_place_that_is_left():
    memory = Memory()
    memory.remember(("deep", "shallow"), "one")
    memory.remember(("other", "shallow"), "two")
    assert memory.place(("deep", "shallow"), {"one", "two"}) == "one"
    assert memory.place(("deep", "shallow"), {"two"}) == "two"
    assert memory.place(("new", "shallow"), {"one", "two"}) == "two"
    assert memory.place(("new",), {"one", "two"}) is None
    assert memory.place(("deep",), {"three"}) is None


def test_the_least_recent_is_forgotten():
    memory = Memory(2)
    memory.remember(("a", "b"), "one")
    memory.remember(("a",), "one")
    memory.remember(("c",), "one")
    assert [memory.place((key,), {"one"}) for key in "abc"] == ["one", None, "one"]


def test_how_much_busier_is_much():
    assert not much_busier("a", {"a": 4, "b": 0}, 4)
    assert much_busier("a", {"a": 5, "b": 0}, 4)
    assert not much_busier("a", {"a": 9, "b": 6}, 4)
