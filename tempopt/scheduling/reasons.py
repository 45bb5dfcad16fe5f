"""Why a study has fewer agents than it wants, in one sentence for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tempopt.records.pool import Demand, PoolAgent, Quota
from tempopt.scheduling.division import Division, user_of
from tempopt.scheduling.limits import RESUMED_BELOW, Spent


def reasons(
    demands: Sequence[Demand], agents: Sequence[PoolAgent], division: Division, studies: Mapping[int, int]
) -> dict[int, str]:
    """Return why each study has fewer agents than it wants, by the study's id.

    Args:
        demands: The studies.
        agents: The agents.
        division: How many agents each study is to have.
        studies: The study that each agent is to serve, both by their places in these.
    """
    known = {demand.study_id for demand in demands}
    coming: Counter[int] = Counter()
    for agent, study in studies.items():
        before = agents[agent].study_id
        coming[study] += before in known and before != demands[study].study_id
    found = {}
    for study, demand in enumerate(demands):
        if division.counts[study] < demand.wanted:
            found[demand.study_id] = _reason(study, demands, agents, division)
        elif coming[study]:
            those = "It comes when it has" if coming[study] == 1 else "They come when they have"
            on_the_way = _count(coming[study], "agent")
            found[demand.study_id] = f"It waits for {on_the_way}. {those} left another study."
    return found


def _reason(study: int, demands: Sequence[Demand], agents: Sequence[PoolAgent], division: Division) -> str:
    demand = demands[study]
    user = division.user(study)
    if user in division.spent:
        return _spent(division.spent[user])
    if not division.may_be_served(study):
        return _unable(demand, agents)
    if user in division.full:
        return _full(division.full[user])
    holders = division.holders(study)
    if all(each.priority > demand.priority for each in holders):
        return "Studies with a higher priority have all agents that can serve it."
    if all(user_of(each) == user for each in holders if each.priority == demand.priority):
        return f"Older studies of {demand.owner} come first."
    standing = division.users[user]
    share = f"{demand.owner} is due {standing.due:.1f} of {division.shared} GPUs now, and has {standing.gpus}"
    return f"It waits for its share: {share}."


def _spent(spent: Spent) -> str:
    quota = spent.quota
    days = f" in {quota.days:g} days" if quota.days is not None else ""
    hours = f"{spent.hours:,.1f}" if spent.hours >= 1.0 else f"{spent.hours:.2g}"
    used = f"{hours} of {quota.gpu_hours:,g} GPU-hours{days}"
    if spent.hours < (quota.gpu_hours or 0.0):
        below = f"agents come when less than {RESUMED_BELOW:.0%} is used"
        return f"The budget of {_whose(quota)} was used up, {used}: {below}."
    return f"The budget of {_whose(quota)} is used up: {used}."


def _full(quota: Quota) -> str:
    return f"At most {_count(quota.agents or 0, 'agent')} at a time may serve studies of {_whose(quota)}."


def _whose(quota: Quota) -> str:
    if quota.user:
        return f"{quota.user} in the queue {quota.queue}" if quota.queue else quota.user
    return f"the queue {quota.queue}" if quota.queue else "all users together"


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _named(what: str, names: Iterable[str]) -> str:
    found = sorted(names)
    return f"{what if len(found) == 1 else what + 's'} {', '.join(found)}"


def _unable(demand: Demand, agents: Sequence[PoolAgent]) -> str:
    """Return what no agent has that the study needs, while none may serve it."""
    if not agents:
        return "The pool has no agents."
    left = [each for each in agents if not each.queues or demand.queue in each.queues]
    if not left:
        served = {queue for each in agents for queue in each.queues}
        return f"No agent serves the queue {demand.queue}: they serve only the {_named('queue', served)}."
    labelled = [each for each in left if demand.labels <= each.labels]
    if not labelled:
        missing = demand.labels - frozenset().union(*(each.labels for each in left))
        if missing:
            return f"No agent{_of(demand, agents, left)} has the {_named('label', missing)}."
        return f"No agent{_of(demand, agents, left)} has all of the {_named('label', demand.labels)}."
    large = [each for each in labelled if demand.gpus <= each.gpus or (demand.on_cpu and not each.gpus)]
    if not large:
        most = max(each.gpus for each in labelled)
        held = f"at most {most}" if most else "none"
        return (
            f"It needs {demand.gpus:g} GPU{'s' if demand.gpus > 1 else ''} for a run, and agents have {held}."
        )
    named = [each for each in large if demand.name.startswith(each.studies)]
    if not named:
        served = {f"{each.studies}…" for each in large}
        return f"Agents may serve only studies with the {_named('name', served)}."
    why = {each.unable[demand.study_id] for each in named if demand.study_id in each.unable}
    return f"No agent can serve it: {'; '.join(sorted(each.rstrip('.') for each in why))}."


def _of(demand: Demand, agents: Sequence[PoolAgent], left: Sequence[PoolAgent]) -> str:
    return "" if len(left) == len(agents) else f" of the queue {demand.queue}"
