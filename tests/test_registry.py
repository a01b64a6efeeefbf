import pytest

from hf_targets.registry import Registry


class Good:
    def fill(self):
        pass


def test_what_is_registered_is_found_by_its_name():
    registry = Registry("sampler", "fill")
    assert registry.register("mine", Good) is registry["mine"] is Good
    assert registry.register("mine", Good) is Good  # a module that is read twice
    assert list(registry) == ["mine"] and len(registry) == 1 and "other" not in registry


@pytest.mark.parametrize(
    ("name", "cls", "told"),
    [
        (
            "taken",
            type("Other", (Good,), {}),
            "the sampler .taken. is Good already; register .*Other under another",
        ),
        ("empty", type("Empty", (), {}), "a sampler has fill, and 'empty' lacks fill"),
        ("number", type("Number", (), {"fill": 3}), "lacks fill"),
        ("a name", Good, "a sampler is named by an identifier, got 'a name'"),
        ("", Good, "named by an identifier, got ''"),
        (None, Good, "named by an identifier, got None"),
    ],
)
def test_what_cannot_be_registered_is_told_why(name, cls, told):
    registry = Registry("sampler", "fill")
    registry.register("taken", Good)
    with pytest.raises(ValueError, match=told):
        registry.register(name, cls)
    assert list(registry) == ["taken"]


def test_a_name_that_is_not_there_is_told_with_those_that_are():
    registry = Registry("sampler")
    registry.register("one", Good)
    registry.register("two", Good)
    with pytest.raises(ValueError, match="sampler must be one of one, two, got 'three'"):
        registry["three"]
