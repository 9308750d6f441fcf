#include "judge/report/html/html_report.h"

namespace touchstone::judge {

std::string html_style() {
  return R"css(
:root {
  color-scheme: light dark;
  --paper: #fdfcfa; --ink: #22211f; --soft: #6d6a64; --line: #e6e2da; --wash: #f5f2ec;
  --good: #1d7146; --good-wash: #e5f1e9; --bad: #a63a28; --bad-wash: #f8e7e2;
  --odd: #80600f; --odd-wash: #f6efd9; --bar: #7f9bb0; --bar-track: #ece8e0; --whisker: #35424c;
  --s0: #2f6f9f; --s1: #c0563f; --s2: #4c8a4a; --s3: #a5781c; --s4: #7d5aa6; --s5: #2a8c8c;
  --s6: #8a8780; --s7: #b04f7f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #171614; --ink: #e9e5de; --soft: #a09b91; --line: #312e2a; --wash: #1f1d1a;
    --good: #7cc49a; --good-wash: #1d2f25; --bad: #e8917e; --bad-wash: #3a221d;
    --odd: #d9bb6a; --odd-wash: #332b17; --bar: #5f7f97; --bar-track: #2a2825; --whisker: #c3d2dd;
    --s0: #6faede; --s1: #e5866f; --s2: #83c17f; --s3: #d9ae55; --s4: #b292da; --s5: #60c0c0;
    --s6: #a8a59d; --s7: #e086b3;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 48px 28px 80px; }
h1, h2, h3 { font-family: ui-serif, Georgia, "Times New Roman", "Noto Serif", serif;
  font-weight: 600; line-height: 1.2; letter-spacing: -0.005em; }
h1 { font-size: 34px; margin: 0 0 6px; }
h2 { font-size: 23px; margin: 64px 0 4px; }
h3 { font-size: 17px; margin: 28px 0 8px; }
h4 { font-size: 13.5px; font-weight: 600; margin: 18px 0 4px; }
p { margin: 6px 0; max-width: 74ch; }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: 2px; }
.soft { color: var(--soft); }
.small { font-size: 13px; }
.lead { font-size: 17px; }
.stamp { border-left: 3px solid var(--bad); padding: 6px 12px; background: var(--bad-wash);
  max-width: none; }
nav { margin: 20px 0 0; font-size: 14px; color: var(--soft); }
nav a { margin-right: 18px; }
code, pre, .mono { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
pre { margin: 6px 0; padding: 9px 12px; background: var(--wash); border: 1px solid var(--line);
  border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: 12.5px;
  padding: 6px 8px; border-bottom: 1px solid var(--line); vertical-align: bottom; }
td { padding: 9px 8px; border-bottom: 1px solid var(--line); vertical-align: top; }
.board { table-layout: fixed; }
.board th { overflow-wrap: anywhere; }
.board col.rank { width: 34px; }
.board col.who { width: 176px; }
.board col.verdict { width: 126px; }
.board td { vertical-align: middle; }
.board tr.out td { color: var(--soft); }
.board .name { font-weight: 600; color: var(--ink); overflow-wrap: anywhere; }
.board .name a { text-decoration: none; }
.board .name a:hover { text-decoration: underline; }
.board .sub { display: block; font-weight: 400; font-size: 12px; color: var(--soft); }
.num { text-align: right; white-space: nowrap; }
th.num { text-align: right; }
.score b { font-weight: 500; }
.score.best b { font-weight: 700; color: var(--good); }
.score.worst b { color: var(--bad); }
.score svg { display: block; width: 100%; height: 9px; margin-top: 2px; }
.untested { color: var(--soft); }
.badge { display: inline-block; padding: 1px 8px; border-radius: 10px; font-size: 11.5px;
  font-weight: 600; letter-spacing: 0.03em; white-space: nowrap; }
.badge.good { color: var(--good); background: var(--good-wash); }
.badge.bad { color: var(--bad); background: var(--bad-wash); }
.badge.odd { color: var(--odd); background: var(--odd-wash); }
.matrix td, .matrix th { text-align: center; }
.matrix td:first-child, .matrix th:first-child { text-align: left; }
.matrix .big { font-size: 18px; font-weight: 600; display: block; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(236px, 1fr)); gap: 26px 30px;
  margin: 18px 0 6px; }
@media (min-width: 821px) { .plots.three { grid-template-columns: repeat(3, 1fr); } }
figure { margin: 0; }
figcaption { font-size: 13px; color: var(--soft); margin-bottom: 4px; }
figcaption b { color: var(--ink); font-weight: 600; }
figure svg { width: 100%; height: auto; display: block; overflow: visible; }
svg text { fill: var(--soft); font: 11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg .axis { stroke: var(--line); stroke-width: 1; }
svg .roof { stroke: var(--ink); stroke-width: 1.4; stroke-dasharray: 5 4; fill: none; }
svg .series { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.legend { margin: 10px 0 0; padding: 0; list-style: none; font-size: 13px; }
.legend li { display: inline-block; margin: 0 18px 4px 0; white-space: nowrap; }
.legend i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 7px;
  vertical-align: middle; }
details { border-bottom: 1px solid var(--line); }
summary { cursor: pointer; padding: 11px 2px; list-style: none; display: flex; gap: 12px;
  align-items: baseline; flex-wrap: wrap; }
summary::-webkit-details-marker { display: none; }
summary::before { content: "+"; color: var(--soft); width: 12px; flex: none; }
details[open] > summary::before { content: "\2013"; }
summary .why { color: var(--soft); font-size: 13.5px; flex: 1 1 260px; }
.inside { padding: 0 0 18px 24px; }
.inside td, .inside th { padding: 5px 8px; font-size: 13.5px; }
.edge-first td:nth-child(2), .edge-second td:nth-child(3) { color: var(--good); font-weight: 600; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); gap: 0 34px; }
.remarks { margin: 4px 0 10px; padding-left: 18px; font-size: 13.5px; }
.remarks li { margin: 3px 0; max-width: 80ch; }
.remarks.good li::marker { content: "+  "; color: var(--good); }
.remarks.bad li::marker { content: "\2212  "; color: var(--bad); }
.evidence-table td:first-child { width: 34%; overflow-wrap: anywhere; }
.evidence-table td:nth-child(2) { width: 26%; overflow-wrap: anywhere; }
details.hybrid { margin-top: 6px; border-bottom: 0; }
@media (min-width: 821px) {
  .duel { table-layout: fixed; }
  .duel th:first-child { width: 24%; }
  .duel th:nth-child(2), .duel th:nth-child(3) { width: 15%; }
  .duel td { overflow-wrap: anywhere; }
}
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 8px 0;
  font-size: 13.5px; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
footer { margin-top: 72px; padding-top: 16px; border-top: 1px solid var(--line);
  color: var(--soft); font-size: 13px; }
@media (max-width: 820px) {
  main { padding: 26px 16px 56px; }
  h1 { font-size: 27px; }
  h2 { margin-top: 46px; }
  .board thead { display: none; }
  .board, .board tbody { display: block; }
  .board tr { display: grid; grid-template-columns: repeat(3, 1fr); gap: 8px 14px;
    padding: 14px 0; border-bottom: 1px solid var(--line); }
  .board td { border: 0; padding: 0; display: block; text-align: left; }
  .board tr { position: relative; padding-left: 34px; }
  .board td.rank { position: absolute; left: 0; top: 13px; font-size: 19px; font-weight: 600; }
  .board td.who { grid-column: 1 / span 2; }
  .board td.verdict { text-align: right; }
  .board td[data-label]::before { content: attr(data-label); display: block; font-size: 11.5px;
    color: var(--soft); }
  .board td.untested { display: none; }
  .inside { padding-left: 0; }
  .duel thead th:nth-child(4) { display: none; }
  .duel tr { display: grid; grid-template-columns: 1.2fr 1fr 1fr; padding: 5px 0;
    border-bottom: 1px solid var(--line); }
  .duel td, .duel th { border: 0; padding: 1px 6px 1px 0; overflow-wrap: anywhere; }
  .duel td.evidence { grid-column: 1 / -1; font-size: 12px; }
  .inside table:not(.duel) { display: block; overflow-x: auto; }
  .scroll { overflow-x: auto; }
  .scroll table { min-width: 620px; }
  .scroll .matrix { min-width: 0; }
}
@media print {
  :root { --paper: #fff; --ink: #000; --soft: #444; --line: #ccc; --wash: #f6f6f6; }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  nav { display: none; }
  h2 { break-after: avoid; margin-top: 28px; }
  details, figure, tr { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; }
  summary::before { content: ""; }
}
)css";
}

}  // namespace touchstone::judge
