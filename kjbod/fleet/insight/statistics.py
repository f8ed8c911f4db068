"""Rates with exact limits, survival, evenness: plain numbers in, plain numbers out.

The limits of a failure rate are Garwood's: the exact ones for a count, from quantiles of the gamma distribution.
"""

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Sequence

from scipy import special

from kjbod.fleet.insight.model import Rate, SurvivalStep

DAYS_PER_YEAR = 365
"""Of an annualised failure rate, as Backblaze has it."""
HOURS_PER_YEAR = 8766
"""Of power-on ages."""
CONFIDENCE = 0.95
AT_RISK_MIN = 50
"""Fewer drives at an age make no step of a survival curve: a single one of three would halve it for ever."""
Z = float(special.ndtri((1 + CONFIDENCE) / 2))


def poisson_limits(count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact limits of the mean of which ``count`` was seen; the lower one of none is 0."""
    tail = (1 - confidence) / 2
    low = float(special.gammaincinv(count, tail)) if count else 0.0
    return low, float(special.gammaincinv(count + 1, 1 - tail))


def rate(drive_days: int, failures: int, drive_days_min: int = 1) -> Rate:
    """Annualised failure rate and mean time between failures, with limits; counts alone below ``drive_days_min``."""
    low, high = poisson_limits(failures)
    is_enough = drive_days >= max(drive_days_min, 1)

    def pct(count: float) -> float | None:
        return 100 * count * DAYS_PER_YEAR / drive_days if is_enough else None

    def mtbf(count: float) -> float | None:
        return 24 * drive_days / count if count > 0 and is_enough else None

    return Rate(
        drive_days=drive_days,
        failures=failures,
        afr_pct=pct(failures),
        low_pct=pct(low),
        high_pct=pct(high),
        mtbf_hours=mtbf(failures),
        mtbf_low_hours=mtbf(high),
        mtbf_high_hours=mtbf(low),
    )


def student_t(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Quantile of Student's t distribution for limits on both sides."""
    return float(special.stdtrit(degrees, (1 + confidence) / 2))


def survival_limits(survival: float, greenwood: float) -> tuple[float, float]:
    """95 % limits of a share that survives, on the log-log scale, where they stay between 0 and 1; ``greenwood`` is the
    sum of d / (n (n - d)) so far."""
    if not 0 < survival < 1:
        return survival, survival
    spread = math.exp(Z * math.sqrt(greenwood) / abs(math.log(survival)))
    return survival**spread, survival ** (1 / spread)


def kaplan_meier(
    lives: Iterable[tuple[float, float, bool]], at_risk_min: int = AT_RISK_MIN
) -> tuple[list[SurvivalStep], int]:
    """Survival by age of ``(age when first seen, age when last seen, whether it failed then)``: the steps, and how many
    failures were left out because too few drives were at risk. A drive is at risk at both of its ages."""
    known = [life for life in lives if life[0] <= life[1]]
    entries, exits = sorted(life[0] for life in known), sorted(life[1] for life in known)
    failed = Counter(age for _, age, failure in known if failure)
    survival, greenwood, left_out, steps = 1.0, 0.0, 0, []
    for age in sorted(failed):
        deaths = failed[age]
        at_risk = bisect.bisect_right(entries, age) - bisect.bisect_left(exits, age)
        if at_risk < at_risk_min or at_risk == deaths:
            left_out += deaths
            continue
        survival *= 1 - deaths / at_risk
        greenwood += deaths / (at_risk * (at_risk - deaths))
        low, high = survival_limits(survival, greenwood)
        steps.append(
            SurvivalStep(age_years=age, at_risk=at_risk, failures=deaths, survival=survival, low=low, high=high)
        )
    return steps, left_out


def gini(values: Sequence[float]) -> float | None:
    """Gini coefficient: 0 where all are equal, near 1 where one has everything; None of nothing."""
    total, count = math.fsum(values), len(values)
    if not count or total <= 0:
        return None
    weighted = math.fsum((2 * rank - count - 1) * value for rank, value in enumerate(sorted(values), 1))
    return weighted / (count * total)
