"""Rules over budgets, for scripts/evaluate/quality.py and scripts/evaluate/tasks.py: what a rule is at a budget, a file that keeps what
was measured, and a picture with a line for each rule.

A rule is what weft's --retention takes, with a factor in braces in place of each amount that follows the budget: at a
budget of 0.2 `h2o:{0.5}:{0.5}` is h2o:0.1:0.1. A rule without braces is the same at every budget.
"""

import argparse
import collections
import json
import math
import pathlib
import re
import sys

from svg import GREY, Svg

BUDGETS = [0.5, 0.2, 0.1, 0.05]
FACTOR = re.compile(r"\{(\d+\.?\d*|\.\d+)\}")


def budget(text):
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share: above 0 and at most 1")
    return share


def add_options(parser, kept, what):
    """Those of budgets; `kept` is the option whose file keeps what was measured."""
    parser.add_argument("--budgets", nargs="+", type=budget, metavar="SHARE",
                        help="at which rules with factors in braces, such as h2o:{0.5}:{0.5}, are measured; by default "
                        + " ".join(map(str, BUDGETS)))
    parser.add_argument("--picture", type=pathlib.Path, metavar="FILE.svg", help="draw the rules over the budgets")
    parser.add_argument(kept, type=pathlib.Path, metavar="FILE.json",
                        help=f"keep {what} of each rule here, for later calls with the same settings and other rules "
                        "or budgets; remove it when weft or the model has changed")


def at_budget(rule, budget):
    """The rule as weft takes it."""
    text = FACTOR.sub(lambda factor: share(float(factor[1]) * budget), rule)
    if "{" in text or "}" in text:
        sys.exit(f"{rule}: what stands in braces is a number, such as {{0.5}}")
    return text


def share(amount):
    """With a point whatever it is: 1.0 is all tokens, 1 is one."""
    text = f"{min(amount, 1):.6f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def flags_of(rule):
    """What weft is started with: a RULE may end with @ and a --kv-dtype, as in h2o:0.05:0.05:cold=1.0@int8:4:2."""
    retention, _, kv_dtype = rule.partition("@")
    return ["--retention", retention] + (["--kv-dtype", kv_dtype] if kv_dtype else [])


# A rule, its budget (None without braces), the rule as weft takes it, and the first rule at this budget, if it has one.
Run = collections.namedtuple("Run", "rule budget text first")


def runs(args):
    """What is to be measured, in order."""
    braced = [rule for rule in args.rules if "{" in rule]
    if (args.budgets or args.picture) and not braced:
        sys.exit("--budgets and --picture are for rules with factors in braces, such as h2o:{0.5}:{0.5}; none has any")
    first = args.rules[0]
    found = [Run(rule, None, at_budget(rule, None), None if first in braced else first)
             for rule in args.rules if rule not in braced]
    for budget in (args.budgets or BUDGETS) if braced else []:
        found += [Run(rule, budget, at_budget(rule, budget), at_budget(first, budget)) for rule in braced]
    return found


class Kept:
    """`count` numbers of each rule, in a file if one is named."""

    def __init__(self, path, settings, count):
        self.path, self.settings, self.rules = path, settings, {}
        if path and path.exists():
            self.rules = read(path, settings, count)

    def of(self, rule, measure):
        if rule not in self.rules:
            self.rules[rule] = measure(rule)
            if self.path:
                # In full or not at all: to measure may have taken hours.
                self.path.parent.mkdir(parents=True, exist_ok=True)
                new = self.path.with_name(self.path.name + ".new")
                new.write_text(json.dumps({"settings": self.settings, "rules": self.rules}) + "\n")
                new.replace(self.path)
        return self.rules[rule]


def read(path, settings, count):
    try:
        held = json.loads(path.read_text())
        theirs, rules = held["settings"], held["rules"]
        other = sorted(name for name in theirs.keys() | settings.keys() if theirs.get(name) != settings.get(name))
        fits = all(len(numbers) == count and all(map(math.isfinite, numbers)) for numbers in rules.values())
        if not other and not fits:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        sys.exit(f"{path} is damaged, or no file of this script: remove it or name another")
    if other:
        sys.exit(f"{path} was measured with another {', '.join(other)}: remove it or name another file")
    return rules


# The picture.

LEFT, TOP, WIDTH, HEIGHT, MARGIN = 64, 98, 800, 380, 24
FAR = 20  # values that differ by more are drawn by their logarithms
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#aa3377", "#b8860b", "#56b4e9", "#1f2933"]
SHAPES = [(24, 0), (4, math.pi / 4), (3, -math.pi / 2), (4, 0)]  # corners, and where the first one is
GRID, TEXT = "#e4e7eb", 12.5


def draw(path, title, note, y_title, measured, ends=None):
    """`measured`: (Run, value, error) of each run. Without `ends` the y axis holds 0 and all values."""
    lines = {}
    for run, value, error in measured:
        lines.setdefault(run.rule, []).append((run.budget, value, error))
    at_x, budgets = x_axis(run.budget for run, _, _ in measured if run.budget)
    at_y, ticks, far = y_axis([(value, error) for _, value, error in measured], ends)
    columns = max(1, int((WIDTH + MARGIN) / (70 + 0.61 * TEXT * max(map(len, lines)))))
    legend = TOP + HEIGHT + 72
    svg = Svg(LEFT + WIDTH + MARGIN, legend + 22 * math.ceil(len(lines) / columns), title)
    svg.text(MARGIN, 32, title, 18, weight="bold")
    svg.text(MARGIN, 54, note, 13, GREY)
    svg.text(MARGIN, TOP - 12, y_title + (", logarithmic" if far else ""), 13)
    draw_axes(svg, at_x, at_y, budgets, ticks)
    for i, (rule, points) in enumerate(lines.items()):
        colour, shape = COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)]
        x, y = LEFT + i % columns * (WIDTH + MARGIN) / columns, legend + i // columns * 22
        svg.text(x + 46, y + 4, rule, TEXT, mono=True)
        if points[0][0] is None:
            height = at_y(points[0][1])
            svg.strokes([((x, y), (x + 36, y))], colour, 2, "6,4")
            svg.line([(LEFT, height), (LEFT + WIDTH, height)], colour, 2, "6,4")
        else:
            svg.strokes([((x, y), (x + 36, y))], colour, 2)
            draw_marker(svg, x + 18, y, shape, colour)
            aside = 3 * (i - (len(lines) - 1) / 2)  # so that the bars of two rules do not hide each other
            points = [(at_x(budget) + aside, value, error) for budget, value, error in sorted(points)]
            draw_line(svg, points, at_y, colour, shape)
    svg.write(path)


def x_axis(budgets):
    """Where a budget is drawn, by its logarithm, and all of them."""
    budgets = sorted(set(budgets))
    span = math.log(budgets[-1] / budgets[0])
    part = lambda budget: math.log(budget / budgets[0]) / span if span else 0.5
    return lambda budget: LEFT + 2 * MARGIN + (WIDTH - 4 * MARGIN) * part(budget), budgets


def y_axis(points, ends):
    """Where a value is drawn, the ticks, and whether they are no even ones: where values differ much, only about 0."""
    low, high = ends or (min(0, *(value - error for value, error in points)),
                         max(0, *(value + error for value, error in points)))
    if low == high:
        high = low + 1
    sizes = [max(abs(value), error) for value, error in points if value or error]
    least = max(min(sizes), max(sizes) / 1000) if sizes else 1
    far = not ends and bool(sizes) and max(sizes) > FAR * least
    scale = (lambda value: math.asinh(value / least)) if far else float
    bottom, height = TOP + HEIGHT - MARGIN, HEIGHT - 2 * MARGIN

    def at(value):
        return bottom - height * (scale(min(max(value, low), high)) - scale(low)) / (scale(high) - scale(low))
    return at, far_ticks(at, low, high) if far else even_ticks(low, high), far


def even_ticks(low, high):
    power = 10 ** math.floor(math.log10((high - low) / 7))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= (high - low) / 7)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def far_ticks(at, low, high):
    """0, powers of ten from the largest on, and 5 and 2 times such, where they have room."""
    ticks, powers = [], range(math.ceil(math.log10(max(-low, high))), -6, -1)
    for tick in [0, *(sign * first * 10.0 ** power for first in (1, 5, 2) for power in powers for sign in (1, -1))]:
        if low <= tick <= high and all(abs(at(tick) - at(other)) > 22 for other in ticks):
            ticks.append(tick)
    return ticks


def draw_axes(svg, at_x, at_y, budgets, ticks):
    right, bottom = LEFT + WIDTH, TOP + HEIGHT
    svg.strokes([((LEFT, at_y(tick)), (right, at_y(tick))) for tick in ticks], GRID)
    svg.strokes([((LEFT, TOP), (LEFT, bottom)), ((LEFT, bottom), (right, bottom))], GREY)
    svg.strokes([((LEFT, at_y(0)), (right, at_y(0)))], GREY)
    svg.strokes([((at_x(budget), bottom), (at_x(budget), bottom + 5)) for budget in budgets], GREY)
    for tick in ticks:
        svg.text(LEFT - 8, at_y(tick) + 4, f"{tick:g}", TEXT, anchor="end")
    free = 0
    for budget in budgets:
        if at_x(budget) > free:
            svg.text(at_x(budget), bottom + 20, f"{100 * budget:g}", TEXT, anchor="middle")
            free = at_x(budget) + 44
    svg.text(LEFT + WIDTH / 2, bottom + 42, "budget, % of the tokens; {0.5} in a rule is half of it", 13,
             anchor="middle")


def draw_line(svg, points, at_y, colour, shape):
    svg.strokes([((x, at_y(value - error)), (x, at_y(value + error))) for x, value, error in points], colour)
    svg.line([(x, at_y(value)) for x, value, _ in points], colour, 2)
    for x, value, _ in points:
        draw_marker(svg, x, at_y(value), shape, colour)


def draw_marker(svg, x, y, shape, colour):
    corners, first = shape
    angles = [first + 2 * math.pi * i / corners for i in range(corners)]
    svg.polygon([(x + 5 * math.cos(angle), y + 5 * math.sin(angle)) for angle in angles], colour)
