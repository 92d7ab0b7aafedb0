"""The kinds of model that the reversal study trains."""

NEXT_TOKEN = "next token"
OUTPUTS_ONLY = "outputs only"
LOCAL = "local attention"
UNTRAINED = "untrained"
KINDS = (NEXT_TOKEN, OUTPUTS_ONLY, LOCAL, UNTRAINED)
