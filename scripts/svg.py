"""What the plotting scripts draw with: a style whose colors follow the reader's light or dark mode, and marks."""


def page(width, height, title, light, dark, marks):
    """The document; `light` and `dark` are the rules of the marks that one plot alone has."""
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{title}</title>
<style>
  svg {{ font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }}
  .surface {{ fill: #ffffff; }} text {{ fill: #52514e; font-size: 12px; }}
  .title {{ fill: #0b0b0b; font-size: 16px; font-weight: 600; }}
  .panel {{ fill: #0b0b0b; font-size: 13px; font-weight: 600; }}
  .grid {{ stroke: #e4e3df; stroke-width: 1; }} .axis {{ stroke: #a3a29c; stroke-width: 1; }}
{light}
  @media (prefers-color-scheme: dark) {{
    .surface {{ fill: #161719; }} text {{ fill: #c3c2b7; }} .title, .panel {{ fill: #ffffff; }}
{dark}
  }}
</style>
<rect class="surface" width="{width}" height="{height}" rx="8"/>
""" + "\n".join([*marks, "</svg>\n"])


def text(x, y, words, css="", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{words}</text>'


def rule(css, left, right, y):
    return f'<line class="{css}" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'


def curve(points, line_css, dot_css, radius):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return [f'<polyline class="line {line_css}" points="{path}"/>',
            *(f'<circle class="dot {dot_css}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in points)]
