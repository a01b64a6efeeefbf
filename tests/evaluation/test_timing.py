import time

import torch

from hf_targets.evaluation import timing


def test_an_accelerator_is_waited_for_before_the_clock_is_read_and_a_cpu_is_not(monkeypatch):
    events = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: events.append(device.type))
    monkeypatch.setattr(time, "perf_counter", lambda: events.append("clock"))
    timing.settled_time(torch.device("cpu"))
    timing.settled_time(torch.device("cuda"))
    assert events == ["clock", "cuda", "clock"]
