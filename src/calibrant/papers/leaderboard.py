"""The page of the arena of real predictions: ranks, ratios, wins and failures of all methods, as Markdown."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from calibrant.errors import InputError
from calibrant.papers.arena_real import (
    CALIBRANT,
    CLASSES,
    DUELS,
    KEEP_ACCURACY,
    LABELS,
    PAIRS,
    RANKED,
    REFERENCE_METHOD,
)
from calibrant.papers.arena_tasks import ArenaTask, merge_tasks, read_arena_tasks
from calibrant.papers.peers import PEERS
from calibrant.papers.quantities import quantity
from calibrant.papers.rankings import (
    Ratio,
    critical_difference,
    elo_ratings,
    mean_ranks,
    ratios_to,
    share_of_wins,
    win_rates,
)
from calibrant.papers.rows import Row
from calibrant.papers.writers import markdown_list, markdown_table, number_of
from calibrant.posthoc.names import POOL, method_named
from calibrant.text import markdown

_PROPER = ("nll", "brier")

# The peer that the choice is measured against over tasks with several classes, and the library it is from.
_RIVAL = "probmetrics SMS"
_RIVAL_LIBRARY = "probmetrics"


@dataclass(frozen=True)
class Standing:
    """One line of a board.

    Attributes:
        method: Name of the method.
        ranks: Mean rank by each measure.
        ratios: Ratio to temperature scaling by each proper score.
        wins: Share of comparisons won by each proper score.
        elo: Rating by Brier score.
        seconds: Mean CPU time of a fit.
    """

    method: str
    ranks: Mapping[str, float]
    ratios: Mapping[str, Ratio]
    wins: Mapping[str, float]
    elo: float
    seconds: float


@dataclass(frozen=True)
class Board:
    """The standings over some tasks, best NLL first.

    Attributes:
        standings: The methods that took part in every task.
        critical_difference: Mean ranks further apart differ significantly.
        n_files: Number of files.
        n_tasks: Number of tasks.
        partial: For each method that took part in some tasks only, their number.
    """

    standings: tuple[Standing, ...]
    critical_difference: float
    n_files: int
    n_tasks: int
    partial: Mapping[str, int]


def make_board(tasks: Sequence[ArenaTask], *, only: Callable[[str], bool] = lambda _: True) -> Board:
    """Rank the methods that took part in every task.

    Args:
        tasks: The tasks, at least one, all of the same kind.
        only: Whether a method is to be ranked.
    """
    if not tasks:
        raise InputError("tasks: expected at least one task, got none")
    counts = Counter(name for task in tasks for name in task.results if only(name))
    names = [name for name, count in counts.items() if count == len(tasks)]
    files, ranked = [task.same_file for task in tasks], RANKED[tasks[0].kind]
    scores = {
        measure: [{name: task.results[name][measure] for name in names} for task in tasks]
        for measure in ranked
    }
    ranks = {measure: mean_ranks(scores[measure], files) for measure in ranked}
    ratios = {measure: ratios_to(REFERENCE_METHOD, scores[measure], files) for measure in _PROPER}
    wins = {measure: win_rates(scores[measure]) for measure in _PROPER}
    elo = elo_ratings(scores["brier"])
    standings = [
        Standing(
            name,
            {measure: ranks[measure][name] for measure in ranked},
            {measure: ratios[measure][name] for measure in _PROPER},
            {measure: wins[measure][name] for measure in _PROPER},
            elo[name],
            fmean(task.results[name]["fit_seconds"] for task in tasks),
        )
        for name in names
    ]
    n_files = len(set(files))
    return Board(
        tuple(sorted(standings, key=lambda each: each.ranks["nll"])),
        critical_difference(len(names), n_files),
        n_files,
        len(tasks),
        {name: count for name, count in counts.items() if count < len(tasks)},
    )


def keeps_accuracy(name: str) -> bool:
    """Whether a method of the arena never changes the predicted class.

    Example:
        >>> [name for name in ("temperature", "vector", "netcal temperature") if keeps_accuracy(name)]
        ['temperature', 'netcal temperature']
    """
    if name in PEERS:
        return PEERS[name].keeps_accuracy
    if name in (CALIBRANT, POOL):
        return False
    return name == KEEP_ACCURACY or method_named(name).preserves_accuracy


def leaderboard_page(rows: Iterable[Row], *, left_out: Mapping[str, str] | None = None) -> str:
    """Return the page of finished rows.

    Args:
        rows: The rows of an experiment whose worker is ``arena_real``.
        left_out: Why files were left out, by their names.
    """
    finished = list(rows)
    tasks = merge_tasks({"rows": read_arena_tasks(finished)}).tasks
    if not tasks:
        raise InputError("arena_real: expected finished rows, got none; run the experiment first")
    of_classes = [task for task in tasks if task.kind == CLASSES]
    two = [task for task in of_classes if task.classes == 2]
    several = [task for task in of_classes if task.classes > 2]
    parts = [_introduction(tasks, finished[-1].versions)]
    if of_classes:
        parts.append(_section("All tasks", _board(of_classes)))
    if two and several:
        parts += [_section("Two classes", _board(two)), _section("Several classes", _board(several))]
    if of_classes:
        parts.append(_section("Methods that keep accuracy", make_board(of_classes, only=keeps_accuracy)))
    for kind, title in ((PAIRS, "Confidences with outcomes"), (LABELS, "Several labels")):
        own = [task for task in tasks if task.kind == kind]
        parts.append(_section(title, _board(own)) if own else "")
    parts += [_duels(two, several), _worst(tasks), _chosen(tasks), _failures(tasks)]
    parts.append(markdown_list("Files left out", left_out or {}))
    return "\n".join(part for part in parts if part)


def _board(tasks: Sequence[ArenaTask]) -> Board:
    """Rank all methods but the pool, which is what the choice returns in most tasks."""
    return make_board(tasks, only=lambda name: name != POOL)


def share_won(tasks: Sequence[ArenaTask], first: str, second: str, measure: str) -> float:
    """Return the share of tasks on which one method has a smaller value than another; a tie is half."""
    scores = [{name: task.results[name][measure] for name in (first, second)} for task in tasks]
    return share_of_wins(scores, first, second)


def _introduction(tasks: Sequence[ArenaTask], versions: Mapping[str, str]) -> str:
    sizes = ", ".join(f"{size:,}" for size in sorted({task.samples for task in tasks}))
    names = ("calibrant", "scikit-learn", "probmetrics", "netcal")
    made_by = ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
    counts = [number_of(len({task.file for task in tasks}), "file")]
    counts.append(number_of(len({task.seed for task in tasks}), "seed"))
    return f"""# Leaderboard of real predictions

{number_of(len(tasks), "task")}: {", ".join(counts)}, and {sizes} fitting samples where a file has enough. \
All methods of a task
are fitted on the same samples and measured on the same others: at most 5,000, at least 300 and a fifth of
the fitting samples. A method that cannot be fitted counts as the uncalibrated model. For the scores, no
probability is smaller than 1e-12. Versions: {made_by}.

- **{CALIBRANT}** is what `calibrant calibrate` returns, **{KEEP_ACCURACY}** the same with `--keep-accuracy`.
  The pool is not ranked, because the choice is the pool in most tasks.
- **Mean ranks**: 1 is best. Tasks of one file are not independent, so ranks are averaged within each file,
  then over files. Two methods differ significantly if their mean ranks are further apart than the critical
  difference (Nemenyi, 5 %), for which the number of observations is the number of files.
- **Ratios to temperature scaling**: geometric means over files, with the 95 % interval of 1,000 bootstrap
  resamples of the files.
- **Win %**: share of comparisons with the other methods; a tie is half. **Elo**: by Brier score.
- **CPU s**: mean of a fit in one thread; for `{CALIBRANT}` and `{POOL}` that of the whole comparison.
"""


def _section(title: str, board: Board) -> str:
    ranked = list(board.standings[0].ranks)
    heads = [
        "method",
        *(f"{quantity(name).short} rank" for name in ranked),
        *(f"{quantity(name).short} / temperature" for name in _PROPER),
        *(f"win % by {quantity(name).short}" for name in _PROPER),
        "Elo",
        "CPU s",
    ]
    best = {name: min(each.ranks[name] for each in board.standings) for name in ranked}
    lines = [_line(each, best) for each in board.standings]
    below = (
        f"{number_of(board.n_tasks, 'task')}, {number_of(board.n_files, 'file')}, "
        f"{len(board.standings)} methods; "
        f"critical difference of mean ranks {board.critical_difference:.2f}.\n"
    )
    if board.partial:
        some = ", ".join(f"{name} ({count:,})" for name, count in board.partial.items())
        below += f"Not ranked, because they took part in some of these tasks only: {some}.\n"
    return f"## {title}\n\n{markdown_table(heads, lines)}\n{below}"


def _line(standing: Standing, best: Mapping[str, float]) -> list[str]:
    ranks = [
        f"**{rank:.2f}**" if rank == best[name] else f"{rank:.2f}" for name, rank in standing.ranks.items()
    ]
    ratios = [f"{each.mean:.3f} [{each.low:.3f}, {each.high:.3f}]" for each in standing.ratios.values()]
    wins = [f"{100 * share:.1f}" for share in standing.wins.values()]
    return [standing.method, *ranks, *ratios, *wins, f"{standing.elo:.0f}", f"{standing.seconds:.3f}"]


def _duels(two: Sequence[ArenaTask], several: Sequence[ArenaTask]) -> str:
    """Return the share of tasks on which the choice beats the strongest peers."""
    rivals = dict.fromkeys((_best_peer(two), _best_peer(two, _RIVAL_LIBRARY)))
    kinds = [("several classes", _RIVAL, several), *(("two classes", rival, two) for rival in rivals)]
    duels = list(kinds)
    duels += [
        (f"{kind}, {size:,} samples", rival, [task for task in tasks if task.samples == size])
        for kind, rival, tasks in kinds
        for size in sorted({task.samples for task in tasks})
    ]
    duels += [
        (kind, rival, tasks)
        for rival in (REFERENCE_METHOD, POOL)
        for kind, tasks in (("two classes", two), ("several classes", several))
    ]
    lines = []
    for kind, rival, tasks in duels:
        shared = [task for task in tasks if CALIBRANT in task.results and rival in task.results]
        if shared:
            cells = [_duel(shared, rival, measure) for measure in DUELS]
            lines.append([kind, CALIBRANT, rival, f"{len(shared):,}", *cells])
    if not lines:
        return ""
    heads = ["tasks", "A", "B", "number", *(f"A wins % by {quantity(name).short}" for name in DUELS)]
    return (
        f"## A against B\n\n{markdown_table(heads, lines)}\n"
        "A tie is half a win. In parentheses: the number of tasks in which A is better by more than two\n"
        "standard errors of the test set, and the number in which B is; in the others chance may decide.\n"
    )


def _duel(tasks: Sequence[ArenaTask], rival: str, measure: str) -> str:
    """Return the share of tasks that the choice wins, and how many each side wins beyond chance."""
    share = f"{100 * share_won(tasks, CALIBRANT, rival, measure):.1f}"
    leads = [task.results[rival].get(f"lead_{measure}") for task in tasks]
    known = [lead for lead in leads if lead is not None]
    if len(known) < len(tasks):  # rows of an earlier version
        return share
    return f"{share} ({sum(lead > 2 for lead in known):,} : {sum(lead < -2 for lead in known):,})"


def _best_peer(tasks: Sequence[ArenaTask], library: str = "") -> str:
    """Return the peer, of a library if one is named, with the best mean rank by Brier score; or nothing."""
    if not tasks:
        return ""
    peers = [
        each
        for each in make_board(tasks).standings
        if each.method in PEERS and each.method.startswith(library)
    ]
    return min(peers, key=lambda each: each.ranks["brier"]).method if peers else ""


def _worst(tasks: Sequence[ArenaTask]) -> str:
    """Return the tasks in which the choice is furthest behind temperature scaling, in standard errors."""
    lines = []
    for name in (CALIBRANT, KEEP_ACCURACY, POOL):
        behind = [(_errors_behind(task.results[name]), task) for task in tasks if name in task.results]
        if not behind:
            continue
        errors, task = max(behind, key=lambda each: each[0])
        loss = task.results[name]["nll_behind_temperature"]
        worse = sum(each > 2 for each, _ in behind)
        better = sum(each < -2 for each, _ in behind)
        where = f"{markdown(task.file)}, {task.samples:,} samples, seed {task.seed}"
        lines.append([name, f"{worse:,}", f"{better:,}", f"{errors:.1f}", f"{loss:+.4f}", where])
    if not lines:
        return ""
    heads = [
        "method",
        "tasks worse by > 2 SE",
        "tasks better by > 2 SE",
        "worst, in SE",
        "its NLL difference",
    ]
    table = markdown_table([*heads, "where"], lines)
    return (
        f"## The worst case against temperature scaling\n\n{table}\n"
        "SE: the standard error of the mean difference of NLL over test samples.\n"
    )


def _errors_behind(values: Mapping[str, float]) -> float:
    se = values["nll_behind_temperature_se"]
    return values["nll_behind_temperature"] / se if se > 0 else 0.0


def _chosen(tasks: Sequence[ArenaTask]) -> str:
    counts = {
        name: Counter(task.notes[name]["chosen"] for task in tasks if "chosen" in task.notes.get(name, {}))
        for name in (CALIBRANT, KEEP_ACCURACY)
    }
    chosen = {
        name: ", ".join(f"{method} ({count:,})" for method, count in each.most_common())
        for name, each in counts.items()
        if each
    }
    return markdown_list("What was chosen", chosen)


def _failures(tasks: Sequence[ArenaTask]) -> str:
    """Return for each method that failed how often, and the most frequent reason."""
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for task in tasks:
        for name, labels in task.notes.items():
            if "reason" in labels:
                reasons[name][str(labels["reason"]).replace("\n", " ")] += 1
    failed = {
        name: f"{number_of(sum(counts.values()), 'task')}, most often: {counts.most_common(1)[0][0]}"
        for name, counts in sorted(reasons.items(), key=lambda each: -sum(each[1].values()))
    }
    return markdown_list("Not fitted", failed)
