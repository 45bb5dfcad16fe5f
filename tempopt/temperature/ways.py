"""The ways of attaching temperatures to a module, and which parameters the rows of a query cannot deliver.

Names and reasons alone: a spec is validated by them, and a worker refuses by them.
"""

from __future__ import annotations

from tempopt.temperature.entropy import ENTROPY_PARAMETERS

QUERY_ROWS, ATTENTION_INTERFACE = "query_rows", "attention_interface"

BEYOND_ROWS: dict[str, str] = {
    "head_pattern": "are not known by head",
    "length_scaling": "know nothing of the number of keys",
    "local_share": "know nothing of which keys a head sees",
    "normaliser": "know nothing of what makes weights of the logits",
    **dict.fromkeys(ENTROPY_PARAMETERS, "know nothing of attention weights"),
}
"""Parameter to the reason why query rows cannot deliver it, unless it is neutral."""
