import math

from lab.heat_map import HeatMap, plot_heat_maps

LABELS = {"xlabel": "N", "ylabel": "alpha", "quantity": "perplexity"}


def panel(*values, title="one", marked=None):
    notes = [[f"note {value:g}" for value in row] for row in values]
    columns, rows = [str(n) for n in range(len(values[0]))], [str(n) for n in range(len(values))]
    return HeatMap(title, columns, rows, values, notes, marked)


def texts(axes):
    return {tuple(map(round, text.get_position())): text.get_text() for text in axes.texts}


def test_each_field_shows_its_number_and_note_at_its_column_and_row():
    axes = plot_heat_maps([panel([3.0, 2000.0], [1.0, 4.0])], **LABELS).axes[0]
    assert texts(axes) == {
        (0, 0): "3.0\nnote 3", (1, 0): "2,000.0\nnote 2000", (0, 1): "1.0\nnote 1", (1, 1): "4.0\nnote 4",
    }  # fmt: skip
    low, high = axes.get_ylim()
    assert low < high  # rows go up


def test_what_is_not_finite_is_left_grey_and_takes_no_part_in_the_colours():
    axes = plot_heat_maps([panel([3.0, math.inf], [1.0, math.nan])], **LABELS).axes[0]
    assert axes.images[0].get_clim() == (1.0, 3.0)
    assert texts(axes)[1, 0] == "none\nnote inf"
    assert axes.images[0].get_array().mask.tolist() == [[False, True], [False, True]]
    plot_heat_maps([panel([math.nan])], **LABELS)
