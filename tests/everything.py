"""All public names of the package, imported: what a server of `tests.programs` has at hand."""

import hf_targets

for name in hf_targets.__all__:
    getattr(hf_targets, name)
