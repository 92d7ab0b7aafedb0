"""The exceptions a user can meet, in one tree.

::

    ProbeError                      everything this toolkit raises on purpose
    ├── InputError (ValueError)     an argument is wrong; the command line exits with 2
    │   ├── UnknownNameError        a hook, head, layer, task, analysis or option that is not there
    │   ├── VocabularyError         a character or token the model does not have
    │   └── LengthError             too short, too long, or not the length the task wants
    ├── CheckpointError             a model on disk is damaged, incomplete or of another kind
    ├── OutputExistsError           the output is there already and may not be replaced
    └── TrainingError               training cannot go on (the loss is not finite, a worker died)

Every message says what must hold, what was got, and what to do, in one line.
This module imports nothing.
"""


class ProbeError(Exception):
    """Root of the tree: whatever the toolkit raises on purpose."""


class InputError(ProbeError, ValueError):
    """An argument is wrong; nothing has run yet."""


class UnknownNameError(InputError):
    """A name (hook, head, layer, task, analysis, option) that does not exist."""


class VocabularyError(InputError):
    """A character or token id that the model's vocabulary does not hold."""


class LengthError(InputError):
    """Input of a length that the model or task does not take."""


class CheckpointError(ProbeError):
    """A model on disk is damaged, incomplete, or not one of ours."""


class OutputExistsError(ProbeError):
    """The output is there already and may not be replaced."""


class TrainingError(ProbeError):
    """Training cannot go on."""
