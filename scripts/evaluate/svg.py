"""Shapes and text as SVG, for the scripts that draw pictures."""

import html

FONT = "font-family='Helvetica, Arial, DejaVu Sans, sans-serif'"
INK, GREY, PAPER = "#1f2933", "#616e7c", "#ffffff"


class Svg:
    """Shapes and text on a light ground."""

    def __init__(self, width, height, title):
        self.width, self.height = width, height
        self.parts = [f"<title>{html.escape(title)}</title>",
                      f"<rect width='{width}' height='{height}' fill='{PAPER}'/>"]

    def box(self, x, y, width, height, fill, edge="none", radius=6, dash=""):
        dash = f" stroke-dasharray='{dash}'" if dash else ""
        self.parts.append(f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' rx='{radius}' "
                          f"fill='{fill}' stroke='{edge}'{dash}/>")

    def text(self, x, y, words, size=14, fill=INK, weight="normal", anchor="start", mono=False, halo=False):
        font = "font-family='DejaVu Sans Mono, Menlo, Consolas, monospace'" if mono else FONT
        around = f" stroke='{PAPER}' stroke-width='4' paint-order='stroke'" if halo else ""
        self.parts.append(f"<text x='{x:.1f}' y='{y:.1f}' {font} font-size='{size}' fill='{fill}' "
                          f"font-weight='{weight}' text-anchor='{anchor}'{around}>{html.escape(words)}</text>")

    def line(self, points, stroke, width=1.0, dash="", arrow=False):
        dash = f" stroke-dasharray='{dash}'" if dash else ""
        self.parts.append(f"<polyline points='{' '.join(f'{x:.1f},{y:.1f}' for x, y in points)}' fill='none' "
                          f"stroke='{stroke}' stroke-width='{width}'{dash}/>")
        if arrow:
            x, y = points[-1]
            self.polygon([(x - 4, y - 7), (x + 4, y - 7), (x, y)], stroke)

    def polygon(self, points, fill):
        self.parts.append(f"<polygon points='{' '.join(f'{x:.1f},{y:.1f}' for x, y in points)}' fill='{fill}'/>")

    def strokes(self, ends, stroke, width=1.0, dash=""):
        """Straight strokes, each from one point to another."""
        dash = f" stroke-dasharray='{dash}'" if dash else ""
        path = " ".join(f"M{x:.1f},{y:.1f}L{to_x:.1f},{to_y:.1f}" for (x, y), (to_x, to_y) in ends)
        self.parts.append(f"<path d='{path}' fill='none' stroke='{stroke}' stroke-width='{width}'{dash}/>")

    def write(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width} {self.height}' "
                        f"width='{self.width}' height='{self.height}'>\n" + "\n".join(self.parts) + "\n</svg>\n")
        print(f"wrote {path}")
