"""Labels of whole texts, and the loss of a classifier, by what kind of labels they are."""

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from hf_targets.backbones.inputs import can_look
from hf_targets.maths.losses import IGNORED

Kind = Literal["regression", "single_label_classification", "multi_label_classification"]


def check_class_labels(labels: Tensor, num_texts: int, num_labels: int, problem_type: str | None) -> Kind:
    """Check labels, and return of which kind they are, by the names of Transformers' `problem_type`.

    Args:
        labels: Numbers (texts,) or (texts, num_labels) for a regression; class ids (texts,), or -100 for none; or
            (texts, num_labels), 0 or 1 for each class.
        problem_type: Of the configuration; None: a regression where there is one label, classes where labels are
            integers, and else several classes.
    Raises:
        ValueError: If they have another shape, or a class is out of range.
    """
    kind = problem_type
    if kind is None:
        classes = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
        kind = "regression" if num_labels == 1 else classes
    one_each, one_per_class = (num_texts,), (num_texts, num_labels)
    wanted = {
        "regression": (one_each, one_per_class) if num_labels == 1 else (one_per_class,),
        "single_label_classification": (one_each,),
        "multi_label_classification": (one_per_class,),
    }
    if kind not in wanted:
        raise ValueError(f"problem_type must be one of {', '.join(wanted)} or None, got {problem_type!r}")
    if labels.shape not in wanted[kind]:
        raise ValueError(
            f"labels of a {kind} must be {' or '.join(map(str, wanted[kind]))} for {num_texts} texts and {num_labels} "
            f"labels, got {tuple(labels.shape)} of {labels.dtype}; change them, or set config.problem_type"
        )
    if kind == "single_label_classification":
        if labels.is_floating_point():
            raise ValueError(f"labels of a {kind} must be class ids, integers, got {labels.dtype}; use .long()")
        wrong = (labels != IGNORED) & ((labels < 0) | (labels >= num_labels))
        if can_look(labels) and wrong.any():
            raise ValueError(
                f"labels must be in [0, {num_labels - 1}], the classes, or -100 for none, got "
                f"{labels[wrong][0].item()}; set num_labels"
            )
    return kind  # pyright: ignore[reportReturnType], it is a key of the table


def class_loss(logits: Tensor, labels: Tensor, kind: Kind) -> Tensor:
    """Return the mean loss of logits (texts, num_labels); 0 if no text has a class.

    It is the squared error, the cross-entropy, or the binary cross-entropy, as in Transformers.
    """
    if kind == "regression":
        return F.mse_loss(logits.view(labels.shape), labels.to(logits.dtype))
    if kind == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
    total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp(min=1)
