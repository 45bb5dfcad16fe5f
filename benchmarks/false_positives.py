"""How often does a study show a gain where there is none? Whole studies on worlds without differences.

Each training is any recorded one of the task, whatever its parameters, so that no configuration is better
than another. Search, choosing, confirmation and verdict are tempopt's own (benchmarks/simulated/whole.py).
Counted are gains of the winner over τ = 1 and over constants, gains of learned temperatures, and
recommendations to change anything.

    python -m benchmarks.false_positives --studies 250          # of each task
    python -m benchmarks.false_positives --studies 250 --named  # and two named temperatures
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from scipy.stats import binomtest

from benchmarks.recorded.tasks import TASKS
from benchmarks.recorded.world import RecordedWorld
from benchmarks.simulated.whole import StudySimulation, sampled_by, with_study
from tempopt.spec.study_spec import StudySpec

# the tests are two-sided at 5 %, and a gain is one side of them
_ALLOWED = 0.025
CLAIMS = ("gain over τ = 1", "and over constants", "learned temperatures gain", "a change is recommended")
"""What a study may claim, each of which is false here."""


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--studies", type=int, default=250, help="of each task")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--named", action="store_true", help="search two named temperatures, too")
    parser.add_argument("--sampler", default="knowledge_gradient", help="or random, tpe, ...")
    args = parser.parse_args()
    print(f"| task | studies | {' | '.join(CLAIMS)} | CPU s a study |")
    print("|---" * (3 + len(CLAIMS)) + "|", flush=True)
    counts, studies = Counter[str](), 0
    for task in args.tasks:
        world = RecordedWorld(task, is_shuffled=True)
        settings = {"trials": args.trials} | sampled_by(args.sampler)
        spec = with_study(with_named(world.spec) if args.named else world.spec, **settings)
        start_time, claim_counts = time.process_time(), Counter[str]()
        for seed in range(args.studies):
            claim_counts.update(list_claims(world, with_study(spec, seed=seed)))
        seconds = (time.process_time() - start_time) / args.studies
        cells = " | ".join(str(claim_counts[claim]) for claim in CLAIMS)
        print(f"| {task} | {args.studies} | {cells} | {seconds:.1f} |", flush=True)
        counts, studies = counts + claim_counts, studies + args.studies
    for name in CLAIMS:
        test = binomtest(counts[name], studies, _ALLOWED, alternative="greater")
        low, high = binomtest(counts[name], studies).proportion_ci()
        print(
            f"\n{name}: {counts[name]} of {studies}, {counts[name] / studies:.1%} "
            f"(95 %: {low:.1%} to {high:.1%}); p of so many at {_ALLOWED:.1%}: {test.pvalue:.2g}"
        )


def with_named(spec: StudySpec) -> StudySpec:
    """Return a spec that searches two named temperatures beside what it searches."""
    data = spec.to_json()
    for name, as_found in {"contrast": 0.5, "teacher": 4.0}.items():
        data["temperatures"][name] = {"value": f"{name}.temperature", "as_found": as_found}
        tau = {"low": as_found / 4.0, "high": as_found * 4.0}
        data["search"] |= {
            f"{name}.schedule": ["constant", "linear", "cosine"],
            f"{name}.temperature_init": tau,
            f"{name}.temperature_final": tau,
        }
    return StudySpec.from_json(data)


def list_claims(world: RecordedWorld, spec: StudySpec) -> list[str]:
    """Return which of ``CLAIMS`` a study makes."""
    verdict = StudySimulation(world, with_study(spec, explain=True)).run()
    assert verdict is not None and verdict.recommendation is not None
    is_gain, constants = verdict.primary.significant, verdict.against_constant
    claims = {
        "gain over τ = 1": is_gain,
        "and over constants": is_gain and constants is not None and constants.significant,
        "learned temperatures gain": verdict.learned is not None and verdict.learned.answer.significant,
        "a change is recommended": verdict.recommendation.action_without_training != "change_nothing",
    }
    return [name for name in CLAIMS if claims[name]]


if __name__ == "__main__":
    main()
