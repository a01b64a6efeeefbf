import torch

from lab.memory import added_bytes


def test_what_is_freed_before_other_tensors_come_does_not_add_to_them_and_what_was_there_does_not_count():
    there = torch.zeros(250_000)  # 1 MB

    def run(held=1):
        for _ in range(3):
            parts = [there + number for number in range(held)]
            del parts

    cpu = torch.device("cpu")
    assert 1e6 <= added_bytes(run, cpu) < 1.01e6
    assert 5e6 <= added_bytes(lambda: run(5), cpu) < 5.01e6
