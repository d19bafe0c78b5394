"""Rules that put an object by and take it up again, for the stateful tests of what has a state."""

import copy
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

import bnorm


def pickled(t: Any) -> Any:
    return pickle.loads(pickle.dumps(t, protocol=5))


class Copied(RuleBasedStateMachine):
    """What the test holds is `t`. A subclass has `disturb`, which does to the original what no copy may see."""

    t: Any

    def disturb(self, original: Any) -> None:
        raise NotImplementedError

    @rule(how=st.sampled_from([copy.deepcopy, pickled]))
    def copied(self, how: Any) -> None:
        """The copy goes on; what the original learns later is its own."""
        original, self.t = self.t, how(self.t)
        self.disturb(original)


class Restored(Copied):
    """What can be saved, too."""

    @rule(suffix=st.sampled_from([".npz", ".safetensors"]))
    def store(self, suffix: str) -> None:
        with TemporaryDirectory() as folder:
            self.t.save(Path(folder) / f"t{suffix}")
            self.t = bnorm.load(Path(folder) / f"t{suffix}")
