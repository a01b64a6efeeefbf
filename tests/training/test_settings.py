from dataclasses import dataclass, field

import pytest

from hf_targets.training.settings import parse


@dataclass
class Setup:
    """A recipe's settings."""

    decay: float | None = field(default=0.5, metadata={"help": "Off with None."})
    rows: int = field(default=3, metadata={"help": "Rows."})


@pytest.fixture
def settings(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("decay: null\nrows: 4\n")
    return str(file)


def test_null_in_a_file_of_settings_is_none_and_not_the_default(settings):
    (setup,) = parse(Setup, arguments=[settings])
    assert (setup.decay, setup.rows) == (None, 4)


@pytest.mark.parametrize("arguments", [["--decay", "0.1"], ["--decay=0.1"]])
def test_the_command_line_goes_over_null(settings, arguments):
    (setup,) = parse(Setup, arguments=[settings, *arguments])
    assert setup.decay == 0.1


def test_null_for_an_unknown_field_is_told(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("dekay: null\n")
    with pytest.raises(ValueError, match="unknown settings: dekay"):
        parse(Setup, arguments=[str(file)])
