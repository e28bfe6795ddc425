"""LinearFit: seconds as a non-negative sum of measured quantities, learned while running.

Decayed least squares of the relative error: each observation weighs as its prediction says, so that short and long
calls count alike, and older ones fade by half within `half_life` observations. A coefficient is never negative (more
work never takes less time), and an observation that is far off is drawn to within CLIP of what was expected, so that
one stall moves the fit little; a run of them is no stall, and makes it forget what was before. What cannot be told
apart (two quantities that always grow together) goes to the earlier one.
"""

from collections.abc import Sequence
from itertools import combinations

CLIP = 2.0
# So many in a row that are off to the same side are a change; from then on half of the past is forgotten with each.
CHANGE_RUN = 4
# Before so many observations a short one is believed at once: it is the first ones that are too long.
SETTLED = 8
# Ridge as a share of a quantity's energy, for all but the first: too small to be seen, enough to decide a tie.
TIE_BREAK = 1e-3


class LinearFit:
    """seconds = sum(coefficient * quantity). scales: the usual size of each quantity, which keeps the sums in range."""

    def __init__(self, scales: Sequence[float], *, half_life: float = 32.0) -> None:
        self._scales = tuple(scales)
        self._keep = 0.5 ** (1.0 / half_life)
        size = len(self._scales)
        self._gram = [[0.0] * size for _ in range(size)]
        self._moment = [0.0] * size
        self._coefficients = [0.0] * size
        self._astray = 0  # length of the present run of clipped observations; negative when they were too short
        self.count = 0

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Seconds per unit of each quantity; zeros before the first observation."""
        return tuple(value / scale for value, scale in zip(self._coefficients, self._scales, strict=True))

    def observe(self, quantities: Sequence[float], seconds: float) -> None:
        """One measurement, seconds > 0. O(1): one 3 x 3 system, or seven where a part would be negative."""
        expected = self.predict(quantities)
        keep = self._keep
        if expected > 0:
            keep = self._faith(seconds / expected)
            least = expected / CLIP if self.count >= SETTLED else 0.0
            seconds = min(max(seconds, least), expected * CLIP)
        # By the smaller of the two: a first call that compiled kernels is forgotten as soon as a usual one is seen.
        weight = 1.0 / min(seconds, expected or seconds)
        row = [quantity / scale * weight for quantity, scale in zip(quantities, self._scales, strict=True)]
        for i, left in enumerate(row):
            self._moment[i] = self._moment[i] * keep + left * seconds * weight
            for j, right in enumerate(row):
                self._gram[i][j] = self._gram[i][j] * keep + left * right
        self.count += 1
        self._coefficients = _non_negative(self._gram, self._moment)

    def _faith(self, ratio: float) -> float:
        """What the past still counts for, given how far off an observation is."""
        side = (ratio > CLIP) - (ratio < 1 / CLIP)
        self._astray = self._astray + side if side * self._astray >= 0 and side else side
        return 0.5 if abs(self._astray) >= CHANGE_RUN else self._keep

    def predict(self, quantities: Sequence[float]) -> float:
        """Seconds; 0.0 before the first observation."""
        terms = zip(self._coefficients, quantities, self._scales, strict=True)
        return sum(coefficient * quantity / scale for coefficient, quantity, scale in terms)


def _non_negative(gram: list[list[float]], moment: list[float]) -> list[float]:
    """The x >= 0 that minimises x'Gx - 2m'x: the unbounded optimum if it is one, else the best of all sets of non-zero
    entries. Exact, and there are at most 7."""
    size = len(moment)
    best, best_loss = [0.0] * size, 0.0
    for count in (size, *range(1, size)):
        for chosen in combinations(range(size), count):
            system = [[gram[i][j] * (1 + TIE_BREAK * (i == j and i > 0)) for j in chosen] for i in chosen]
            solution = _solve(system, [moment[i] for i in chosen])
            if solution is None or min(solution) < 0:
                continue
            if count == size:
                return solution
            loss = -sum(value * moment[i] for value, i in zip(solution, chosen, strict=True))
            if loss < best_loss * (1 + 1e-12):
                best_loss = loss
                best = [0.0] * size
                for value, i in zip(solution, chosen, strict=True):
                    best[i] = value
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination of a small symmetric positive system, in place; None if it is singular."""
    size = len(right)
    for i in range(size):
        pivot = matrix[i][i]
        if pivot <= 1e-300:
            return None
        for j in range(i + 1, size):
            factor = matrix[j][i] / pivot
            right[j] -= factor * right[i]
            for k in range(i, size):
                matrix[j][k] -= factor * matrix[i][k]
    for i in reversed(range(size)):
        known = sum(matrix[i][k] * right[k] for k in range(i + 1, size))
        right[i] = (right[i] - known) / matrix[i][i]
    return right
