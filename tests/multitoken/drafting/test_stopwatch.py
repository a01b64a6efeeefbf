"""A stopwatch counts and times passes, and stops no row."""

import torch

from hf_targets.multitoken.drafting import stopwatch
from hf_targets.multitoken.drafting.stopwatch import Stopwatch


def test_the_first_pass_is_counted_but_not_timed(monkeypatch):
    times = iter([5.0, 6.0, 8.0])
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: next(times))
    watch = Stopwatch()
    for _ in range(3):
        assert not watch(torch.zeros(2, 4), None).any()
    assert (watch.passes, watch.seconds_of_a_pass) == (3, 1.5)
