"""Checkpoints that say which package they need, in a process that has not imported it.

Transformers knows our model types once `hf_targets` is imported. Without the import it would say only that it does not
recognize the architecture. So each checkpoint has a file of a few lines beside its `config.json`, and `auto_map` in
`config.json` names it. Transformers then asks for `trust_remote_code=True`, and with it runs that file, which imports
`hf_targets`; if the package is not installed, the error of Transformers names it. After `import hf_targets`
Transformers neither asks nor reads the file.
"""

import inspect
import os
from pathlib import Path
from typing import Any

PACKAGE_IMPORT = "import_hf_targets.py"
_SOURCE = '''"""This checkpoint needs a package. Run `pip install hf-targets`, and `import hf_targets` before loading.

With `trust_remote_code=True` Transformers runs this file instead, which does the same import and nothing more.
"""

from hf_targets import (  # noqa: F401
    AwdLstmConfig,
    CrammedBertConfig,
    DifformerConfig,
    DynamicVocabConfig,
    MdlmConfig,
    MultiTokenConfig,
    MultiTokenMaskedConfig,
    MultiTokenSeq2SeqConfig,
    SemiAutoregressiveConfig,
    TensorizedTransformerConfig,
)
'''


class NamesItsPackage:
    """A configuration whose checkpoints name `hf_targets`, for processes that have not imported it.

    A subclass in a package of somebody else's is as any configuration of theirs: they may register its code.
    """

    def __post_init__(self, **kwargs: Any) -> None:
        if _is_ours(type(self)):
            kwargs.pop("auto_map", None)  # where the class is found is no field
        super().__post_init__(**kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def to_json_file(self, json_file_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write the configuration as Transformers does, and beside it the file that imports `hf_targets`."""
        super().to_json_file(json_file_path, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        if _is_ours(type(self)):
            (Path(json_file_path).parent / PACKAGE_IMPORT).write_text(_SOURCE, encoding="utf-8")

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields that a checkpoint keeps, and where Transformers finds the class of the configuration."""
        values: dict[str, Any] = super().to_diff_dict()  # pyright: ignore[reportAttributeAccessIssue]
        if not _is_ours(type(self)):
            return values
        return {**values, "auto_map": {"AutoConfig": f"{Path(PACKAGE_IMPORT).stem}.{type(self).__name__}"}}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a configuration of its fields and of those given by name, which are checked as if they stood there.

        Transformers sets given fields after the configuration is made, and checks none. Where its class is found is no
        field.
        """
        if _is_ours(cls):
            config_dict = {name: value for name, value in config_dict.items() if name != "auto_map"}
            for name in [name for name in kwargs if name in _own_fields(cls)]:
                old, new = config_dict.get(name), kwargs.pop(name)
                config_dict[name] = {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new
        return super().from_dict(config_dict, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Do nothing for a class of ours: Transformers would save a copy of its module, which needs the others."""
        if not _is_ours(cls):
            super().register_for_auto_class(auto_class)  # pyright: ignore[reportAttributeAccessIssue]


def _own_fields(cls: type) -> set[str]:
    """Return the fields that classes of ours declare, and their other names."""
    declared = {name for one in cls.__mro__ if _is_ours(one) for name in inspect.get_annotations(one)}
    return declared | {name for name, real in getattr(cls, "attribute_map", {}).items() if real in declared}


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]
