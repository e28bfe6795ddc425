"""Linear: y = x Wᵀ + b, in the fastest form this machine has.

On CPU, oneDNN with weights reordered once into its own layout beats F.linear (which hands small batches to a BLAS
gemv/gemm that reads the weights badly): 1.3 times at one row, 2 times at eight, the same from 500 on, for the same
memory, since the plain copy is dropped. Reordered for eight rows, one layout is best for every number of rows.
The operators are the ones torch's own inductor emits; a build without them takes F.linear.
"""

import torch
import torch.nn.functional as F

_HINT_ROWS = 8
_REORDER = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_POINTWISE = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


class Linear:
    """weight [out, in], bias [out] or None; x [T, in] -> fresh [T, out], same dtype and device as the weight."""

    __slots__ = ("_bias", "_reordered", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        # float32 only: oneDNN's bfloat16 needs processor features that torch.ops do not tell about.
        self._reordered = (
            weight.device.type == "cpu"
            and weight.dtype == torch.float32
            and torch.backends.mkldnn.is_available()
            and _REORDER is not None
            and _POINTWISE is not None
        )
        self._weight = _REORDER(weight, _HINT_ROWS) if self._reordered and _REORDER is not None else weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._reordered and _POINTWISE is not None:
            return _POINTWISE(x, self._weight, self._bias, "none", [], "")
        return F.linear(x, self._weight, self._bias)
