"""Group-sequential t test: exact boundaries for several looks at the data, and spending of the level.

Pairs come in groups, and after each group Student's test may end the test. Successive t statistics of normal
differences are not sums with known variance, and boundaries that assume this keep the level only
approximately with four or eight pairs. Exact ones follow in one dimension: R_n = Σd / √(n Σd²), of which t is
a function, is the cosine between the differences and (1, ..., 1), whose direction is uniform under the null
hypothesis, and R at successive looks is a Markov chain for any standard deviation. Independent of arms and
seeds.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

Look = tuple[int, float]
"""Number of usable pairs at a look, and the share of the level that is spent by then, in (0, 1]; both ascend.
"""

_MAX_SCORE = 7.5
_NUM_CELLS = 400
_SCORES = np.linspace(-_MAX_SCORE, _MAX_SCORE, _NUM_CELLS + 1)
_STEP = 2 * _MAX_SCORE / _NUM_CELLS
"""Step of the grid for a look's t statistic: normal scores of its one-sided p, from 1 - 3e-14 to 3e-14."""

_MASS = np.diff([math.erfc(-score / math.sqrt(2)) / 2 for score in _SCORES])
_POINTS_PER_CELL = 24
_SMOOTH_FROM = 3
_MIN_NODES = 20
_NUM_ANGLES = 8192
_SPENDING_EXPONENT = 1.5
_LEVELS = np.linspace(-_MAX_SCORE, _MAX_SCORE, 601)
"""Normal scores of the overall one-sided levels between which a repeated p-value is interpolated."""


def alpha_spending(pairs: int, max_pairs: int) -> float:
    """Return the share of the level that a look at ``pairs`` pairs spends: (pairs / max_pairs)^1.5.

    Chosen among powers (Kim & DeMets 1987) and the shapes of Pocock and O'Brien and Fleming (Lan & DeMets
    1983) for expensive trainings: looks at 4, 8, 12 and 16 pairs, stopped where the gain is not above zero.
    The columns are gains in standard deviations of a pair's difference; a cell has the power and the mean
    number of trained pairs:

    ====================  ==========  ==========  ==========  ==========  =========
    spent                 0           0.5         1           1.5         2.5
    ====================  ==========  ==========  ==========  ==========  =========
    fixed 8               2.5 %, 8    23 %, 8     68 %, 8     95 %, 8     100 %, 8
    fixed 16              2.5 %, 16   46 %, 16    96 %, 16    100 %, 16   100 %, 16
    Pocock                2.5 %, 8.6  33 %, 12.3  90 %, 10.4  100 %, 7.6  100 %, 5.5
    power 1               2.4 %, 8.6  36 %, 12.4  91 %, 10.6  100 %, 8.0  100 %, 5.9
    power 1.5             2.4 %, 8.6  39 %, 12.5  93 %, 10.9  100 %, 8.5  100 %, 6.6
    power 2               2.4 %, 8.7  40 %, 12.6  93 %, 11.2  100 %, 8.8  100 %, 7.2
    O'Brien and Fleming   2.4 %, 8.7  43 %, 13.0  94 %, 12.1  100 %, 10   100 %, 8.1
    ====================  ==========  ==========  ==========  ==========  =========

    A large gain ends after fewer than eight pairs, and a gain of one standard deviation is found nearly as
    often as with sixteen. What flatter shapes save beyond that reduces the power for small gains.
    (benchmarks/sequential.py)

    Args:
        pairs: Number of complete pairs, >= 1.
        max_pairs: Largest number of pairs of the test, >= 1.

    Returns:
        A share in (0, 1]; 1 from ``max_pairs`` on.
    """
    assert pairs >= 1 and max_pairs >= 1, (pairs, max_pairs)
    return float(min(1.0, pairs / max_pairs) ** _SPENDING_EXPONENT)


def increment(looks: tuple[Look, ...]) -> float:
    """Return the share of the level that the last look alone may spend.

    A look without new pairs, since all were lost, counts as one with the look before.

    Args:
        looks: Looks up to the present one, at least one.
    """
    _check_looks(looks)
    return looks[-1][1] - max((share for pairs, share in looks if pairs < looks[-1][0]), default=0.0)


def boundaries(looks: tuple[Look, ...], alpha: float) -> tuple[float, ...]:
    """Return the two-sided p of the plain t test below which each look is significant.

    Each side spends half of the level: the probability that a side is crossed at look i and at none before is
    α/2 · (f_i - f_(i-1)), exactly to a relative error of about 1e-5. (Lan & DeMets 1983 for the spending;
    crossing one side and later the other is counted twice, which at α = 0.05 is less than a millionth.)

    Args:
        looks: Looks in their order; a look at one pair, which has no t, never ends a test.
        alpha: Two-sided level of all looks together if the last share is 1, in (0, 1).
    """
    _check_looks(looks)
    assert 0 < alpha < 1, alpha
    from scipy.special import ndtr

    scores = _crossing_scores(looks, np.array([alpha / 2]))[:, 0]
    return tuple(min(1.0, 2 * float(p)) for p in ndtr(-scores))


def repeated_p(looks: tuple[Look, ...], p_nominal: float) -> float:
    """Return the smallest two-sided level at which the last look's boundary is crossed.

    It is valid at every look and for any stopping rule (Jennison & Turnbull 2000, "Group Sequential Methods",
    chapter 9): the probability that it is below a level at any of the looks is at most that level.

    Args:
        looks: Looks up to the present one.
        p_nominal: Two-sided p of the plain t test of the pairs of the last look, in [0, 1].

    Returns:
        A p-value in [1e-13, 1].
    """
    from scipy.special import ndtr, ndtri

    return min(1.0, 2 * float(ndtr(-repeated_score(looks, -float(ndtri(p_nominal / 2))))))


def repeated_score(looks: tuple[Look, ...], score: float) -> float:
    """Return the normal score of the one-sided repeated p-value, given that of the plain t test.

    Args:
        looks: Looks up to the present one.
        score: Score of the plain one-sided p at the last look, Φ⁻¹(1 - p).

    Returns:
        A score of at most 7.5; -inf for a p-value of 1.
    """
    if _has_no_level(looks):
        return -math.inf
    if len(looks) == 1 and looks[0][1] == 1:
        return score
    scores, levels = _crossing_table(looks)
    return float(np.interp(score, scores, levels, left=-math.inf))


def nominal_p(looks: tuple[Look, ...], alpha: float) -> float:
    """Return the two-sided p of the plain t test below which the last look is significant.

    As :func:`boundaries`, and exactly at the point where :func:`repeated_p` is ``alpha``.

    Args:
        looks: Looks up to the present one.
        alpha: Two-sided level of all looks together, in (0, 1).
    """
    if _has_no_level(looks):
        return 0.0
    if len(looks) == 1 and looks[0][1] == 1:
        return alpha
    from scipy.special import ndtr, ndtri

    scores, levels = _crossing_table(looks)
    score = float(np.interp(-float(ndtri(alpha / 2)), levels, scores, left=-math.inf, right=math.inf))
    return min(1.0, 2 * float(ndtr(-score)))


def _has_no_level(looks: tuple[Look, ...]) -> bool:
    """Return whether the last look has no level to spend, or a single pair, which has no t."""
    return increment(looks) <= 0 or looks[-1][0] < 2


def _check_looks(looks: tuple[Look, ...]) -> None:
    pairs, shares = [n for n, _ in looks], [share for _, share in looks]
    assert looks and pairs == sorted(pairs) and shares == sorted(shares), looks
    assert pairs[0] >= 1 and 0 < shares[0] <= shares[-1] <= 1, looks


@lru_cache(maxsize=64)
def _crossing_table(looks: tuple[Look, ...]) -> tuple[FloatArray, FloatArray]:
    """Return scores at which the last look is crossed, ascending, and those of the corresponding levels."""
    from scipy.special import ndtr

    scores = _crossing_scores(looks, ndtr(-_LEVELS))[-1]
    # values beyond the grid's ends are indistinguishable
    is_rising = np.concatenate([[True], np.diff(scores) > 0])
    return scores[is_rising], _LEVELS[is_rising]


def _crossing_scores(looks: tuple[Look, ...], levels_L: FloatArray) -> FloatArray:
    """Return the score at which each look (row) is crossed at each one-sided level (column)."""
    from scipy.special import ndtr

    plain_Z = ndtr(-_SCORES)[:, None]
    scores: list[FloatArray] = []
    above_ZL, wanted_L = np.repeat(plain_Z, len(levels_L), axis=1), np.zeros(len(levels_L))
    last_n, spent_share, last_share = 1, 0.0, 0.0
    for n, share in looks:
        if n > last_n > 1:
            above_ZL = _next_crossing(_kernel(last_n, n), above_ZL, scores[-1], wanted_L)
            spent_share = last_share
        wanted_L = levels_L * (share - spent_share)
        scores.append(_solve(above_ZL / plain_Z, wanted_L) if n > 1 else np.full(len(levels_L), math.inf))
        last_n, last_share = n, share
    return np.array(scores)


def _solve(ratio_ZL: FloatArray, wanted_L: FloatArray) -> FloatArray:
    """Solve for the scores that are exceeded with probability ``wanted_L``; inf where that is 0.

    Probabilities fall by orders of magnitude along the grid, but their ratio to the unconditional ones does
    not; therefore the ratio is interpolated (by a cubic through four points).
    """
    from scipy.special import ndtr

    columns = np.arange(len(wanted_L))
    above_ZL = ratio_ZL * ndtr(-_SCORES)[:, None]
    cell_L = np.clip((above_ZL > wanted_L).sum(axis=0) - 1, 0, _NUM_CELLS - 1)
    start_L = np.clip(cell_L - 1, 0, _NUM_CELLS - 3)
    points = [ratio_ZL[start_L + k, columns] for k in range(4)]
    low, high = np.zeros(len(wanted_L)), np.ones(len(wanted_L))
    for _ in range(45):
        middle = (low + high) / 2
        cubics = _lagrange(middle + cell_L - start_L)
        value = sum(point * cubic for point, cubic in zip(points, cubics, strict=True))
        is_above = value * ndtr(-_score_at(cell_L + middle)) > wanted_L
        low, high = np.where(is_above, middle, low), np.where(is_above, high, middle)
    score_L = _score_at(cell_L + (low + high) / 2)
    return np.where(wanted_L > 0, score_L, math.inf)


def _score_at(position: FloatArray) -> FloatArray:
    return np.asarray(position * _STEP - _MAX_SCORE)


def _next_crossing(
    kernel_XC: FloatArray, above_ZL: FloatArray, crossed_L: FloatArray, wanted_L: FloatArray
) -> FloatArray:
    """Return the probability of crossing at no look so far and exceeding each score at the next one.

    Args:
        kernel_XC: See :func:`_kernel`.
        above_ZL: The same probability for the look before, each column for another level.
        crossed_L: Scores from which that look was crossed, which excludes values above.
        wanted_L: Probabilities of exceeding these.
    """
    columns = np.arange(above_ZL.shape[1])
    place_L = np.clip((crossed_L + _MAX_SCORE) / _STEP, 0, _NUM_CELLS)
    cell_L = np.minimum(place_L.astype(np.intp), _NUM_CELLS - 1)
    mass_CL = above_ZL[:-1] - above_ZL[1:]
    # the kernel is a mean under the normal density, whose mass in a cell differs by a slope
    lean_CL = np.gradient(mass_CL / _MASS[:, None], axis=0) * _MASS[:, None] / 24
    beyond_CL = np.arange(_NUM_CELLS)[:, None] >= cell_L
    mass_CL[beyond_CL] = lean_CL[beyond_CL] = 0.0
    mass_CL[1:] += lean_CL[:-1]
    mass_CL[:-1] -= lean_CL[1:]
    # the rest of the cell with the boundary acts at its own midpoint, between the midpoints of cells
    part_L = place_L - cell_L
    rest_L = np.maximum(0.0, above_ZL[cell_L, columns] - np.maximum(wanted_L, above_ZL[cell_L + 1, columns]))
    x = (part_L - 1) / 2 - _score_at(cell_L + part_L / 2) * _STEP * part_L**2 / 12
    near_L = np.clip(cell_L, 1, _NUM_CELLS - 2)
    x = x + cell_L - near_L
    for offset, share_L in ((-1, x * (x - 1) / 2), (0, 1 - x * x), (1, x * (x + 1) / 2)):
        mass_CL[near_L + offset, columns] += rest_L * share_L
    return kernel_XC @ mass_CL


def _lagrange(x: FloatArray) -> tuple[FloatArray, ...]:
    """Return the weights of the values at 0, 1, 2 and 3 in the cubic through them, at x."""
    a, b, c, d = x, x - 1, x - 2, x - 3
    return -b * c * d / 6, a * c * d / 2, -a * b * d / 2, a * b * c / 6


@lru_cache(maxsize=64)
def _kernel(pairs_before: int, pairs_after: int) -> FloatArray:
    """Return the probability of exceeding each score (row) after some pairs, given a score in a cell after
    fewer.

    On the unit sphere, with r the cosine of the pairs before, the cosine after n₂ pairs is
    R = √(n₁/n₂) · r · u + √(m/n₂) · v, where u is the length of the old part and v the new part's
    projection on ones. (u, v) = ρ (cos θ, sin θ) with ρ² ~ Beta((n₁+1)/2, (m-1)/2) and, independently, √n₁
    tan θ ~ t(n₁); so R = ρ A cos(θ - φ), and given ρ the chance of R > x is that of θ within arccos(x / ρA)
    of φ.
    """
    if pairs_after - pairs_before == 1:
        return _kernel_of_one(pairs_before)
    if pairs_after - pairs_before < _SMOOTH_FROM:
        # with few new pairs the probability has kinks, which only the kernel of one pair resolves
        none, nothing = np.full(_NUM_CELLS, _MAX_SCORE), np.zeros(_NUM_CELLS)
        return _next_crossing(
            _kernel_of_one(pairs_after - 1), _kernel(pairs_before, pairs_after - 1), none, nothing
        )
    upper_XZ = _exceedance(pairs_before, pairs_after, _SCORES)
    cells_XC = (upper_XZ[:, :-1] + upper_XZ[:, 1:]) * (13 / 24)
    cells_XC[:, 1:] -= upper_XZ[:, :-2] / 24
    cells_XC[:, :-1] -= upper_XZ[:, 2:] / 24
    cells_XC[:, 0] -= upper_XZ[:, 0] / 24
    cells_XC[:, -1] -= upper_XZ[:, -1] / 24
    middle_C = (_SCORES[:-1] + _SCORES[1:]) / 2
    return cells_XC - np.diff(upper_XZ) * (middle_C * _STEP / 12)


@lru_cache(maxsize=64)
def _kernel_of_one(pairs_before: int) -> FloatArray:
    """Return the kernel of one new pair, averaged over many points in each cell."""
    fine = np.linspace(-_MAX_SCORE, _MAX_SCORE, _NUM_CELLS * _POINTS_PER_CELL + 1)
    middle = (fine[:-1] + fine[1:]) / 2
    density_CF = np.exp(-(middle**2) / 2).reshape(_NUM_CELLS, _POINTS_PER_CELL)
    density_CF /= density_CF.sum(axis=1, keepdims=True)
    upper_XCF = _exceedance(pairs_before, pairs_before + 1, middle).reshape(_NUM_CELLS + 1, *density_CF.shape)
    return np.asarray(np.einsum("xcf,cf->xc", upper_XCF, density_CF))


def _exceedance(pairs_before: int, pairs_after: int, scores_Z: FloatArray) -> FloatArray:
    """Return the probability of exceeding each of the grid's scores, given each of some earlier scores.

    It is integrated over ρ² from x²/A² to 1 by Gauss-Jacobi quadrature, whose weight contains the square root
    with which the probability begins at the lower end.
    """
    from scipy.special import betaln, roots_jacobi

    num_new, chance = pairs_after - pairs_before, _angle_chance(pairs_before)
    x_X = _cosines(pairs_after, _SCORES[_NUM_CELLS // 2 :])[:, None]
    along = math.sqrt(pairs_before / pairs_after) * _cosines(pairs_before, scores_Z)
    across = math.sqrt(num_new / pairs_after)
    size_Z, angle_Z = np.hypot(along, across), np.arctan2(across, along)
    share_XZ = np.minimum(1.0, x_X / size_Z)
    if num_new == 1:
        upper_XZ = chance(angle_Z, np.arccos(share_XZ))
    else:
        power = (num_new - 3) / 2
        # the rest of the integrand is close to a polynomial of half the degree of the number of pairs
        node_K, weight_K = roots_jacobi(_MIN_NODES + pairs_before // 4, power, 0.5)
        node_K, weight_K = (1 + node_K) / 2, weight_K / weight_K.sum()
        scale = math.exp(betaln(power + 1, 1.5) - betaln((pairs_before + 1) / 2, (num_new - 1) / 2))
        rest_XZ, upper_XZ = 1 - share_XZ**2, np.zeros_like(share_XZ)
        for node, weight in zip(node_K, weight_K, strict=True):
            square_XZ = share_XZ**2 + rest_XZ * node
            inside_XZ = chance(angle_Z, np.arccos(np.minimum(1.0, share_XZ / np.sqrt(square_XZ))))
            upper_XZ += (scale * weight / math.sqrt(node)) * inside_XZ * square_XZ ** ((pairs_before - 1) / 2)
        upper_XZ *= rest_XZ ** ((num_new - 1) / 2)
        # P(R > 0 | r) + P(R > 0 | -r) is 1, which quadrature fulfils only approximately
        upper_XZ[0] += (1 - upper_XZ[0] - upper_XZ[0, ::-1]) / 2
    return np.concatenate([1 - upper_XZ[:0:-1, ::-1], upper_XZ])


def _cosines(n: int, scores: FloatArray) -> FloatArray:
    from scipy.special import ndtr, stdtrit

    t = -stdtrit(n - 1, ndtr(-np.abs(scores)))
    return np.asarray(np.sign(scores) * t / np.sqrt(n - 1 + t**2))


def _angle_chance(n: int) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Return the probability that θ, of density ∝ cosⁿ⁻¹ θ within ±π/2, is within some distance of an angle.

    From a table by cubic Hermite interpolation, exact up to rounding; SciPy's t takes ten times as long.
    """
    from scipy.special import beta, stdtr

    grid = np.linspace(-math.pi / 2, math.pi / 2, _NUM_ANGLES + 1)
    step = grid[1] - grid[0]
    lower_tail = stdtr(n, math.sqrt(n) * np.tan(grid[1:-1]))
    value = 1 - np.concatenate([[0.0], lower_tail, [1.0]])
    value[_NUM_ANGLES // 2 :] = np.concatenate([[0.0], lower_tail])[_NUM_ANGLES // 2 :: -1]
    slope = -step * np.cos(grid) ** (n - 1) / beta(0.5, n / 2)

    def above(angle: FloatArray) -> FloatArray:
        position = np.clip((angle + math.pi / 2) / step, 0, _NUM_ANGLES)
        cell = np.minimum(position.astype(np.intp), _NUM_ANGLES - 1)
        x = position - cell
        rise = value[cell + 1] - value[cell]
        bend = slope[cell] - rise
        return np.asarray(
            value[cell] + x * (rise + (1 - x) * (bend * (1 - x) - (slope[cell + 1] - rise) * x))
        )

    return lambda angle, distance: above(angle - distance) - above(angle + distance)
