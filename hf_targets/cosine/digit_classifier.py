"""A classifier of handwritten digits, whose last layer is what embeddings look like where every class is frequent."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hf_targets.extras import require


@dataclass(frozen=True)
class DigitClassifier:
    """What a classifier of ten digits has learnt.

    Attributes:
        weight: (10, d), the rows of its last layer.
        hidden_states: (images, d), of the images that it was not trained on.
        labels: (images,), the digits on these.
        accuracy: On these, in [0, 1].
    """

    weight: Float[Tensor, "10 dim"]
    hidden_states: Float[Tensor, "images dim"]
    labels: Int[Tensor, "images"]
    accuracy: float


def train_digit_classifier(size: int = 64, seed: int = 0, num_steps: int = 500) -> DigitClassifier:
    """Train two convolutions and two linear layers on 1,297 of scikit-learn's images of 8 x 8 pixels, in seconds.

    Raises:
        ImportError: If scikit-learn is missing.
    Source: Gao et al. 2019, figure 1 (c), which is of MNIST.
    """
    require("sklearn", extra="geometry")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = torch.as_tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.as_tensor(labels)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        order = torch.randperm(len(labels))
        train, test = order[:-500], order[-500:]
        reader = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(32 * 16, size), nn.ReLU()),
        )
        last = nn.Linear(size, 10)
        optimizer = torch.optim.AdamW([*reader.parameters(), *last.parameters()], lr=2e-3)
        for _ in range(num_steps):
            chosen = train[torch.randint(len(train), (64,))]
            loss = nn.functional.cross_entropy(last(reader(images[chosen])), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        hidden = reader(images[test])
        accuracy = (last(hidden).argmax(dim=1) == labels[test]).float().mean().item()
    return DigitClassifier(last.weight.detach().clone(), hidden, labels[test], accuracy)
