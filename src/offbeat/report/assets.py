"""The style sheet and the script of the interactive page."""

STYLE = """
:root { color-scheme: light; --ink: #1c2733; --muted: #66717e; --line: #e1e6ec; --card: #ffffff;
  --page: #f5f7f9; --accent: #0072B2; }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5; font-size: 15px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
header { margin-bottom: 24px; }
h1 { font-size: 32px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.02em; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 0; letter-spacing: -0.01em; }
p { margin: 0; }
.facts, .note, footer { color: var(--muted); }
.note { font-size: 13.5px; margin-top: 6px; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 20px 22px 16px; margin-top: 20px; box-shadow: 0 1px 2px rgba(20, 35, 50, .04); }
.bar { display: flex; flex-wrap: wrap; gap: 10px 14px; align-items: center; justify-content: space-between;
  margin-bottom: 4px; }
.controls { display: flex; flex-wrap: wrap; gap: 10px; }
.switch { display: inline-flex; background: var(--page); border: 1px solid var(--line); border-radius: 9px;
  padding: 3px; }
.switch button { font: inherit; font-size: 13.5px; border: 0; border-radius: 6px; padding: 4px 12px;
  cursor: pointer; color: var(--muted); background: none; }
.switch button:hover { color: var(--ink); }
.switch button[aria-pressed=true] { background: #fff; color: var(--ink); font-weight: 600;
  box-shadow: 0 1px 3px rgba(20, 35, 50, .16); }
.switch button:disabled { opacity: .45; cursor: default; }
select { font: inherit; font-size: 13.5px; color: var(--ink); background: #fff; padding: 6px 10px;
  border: 1px solid #cfd6de; border-radius: 8px; max-width: 100%; }
button:focus-visible, select:focus-visible, summary:focus-visible { outline: 2px solid var(--accent);
  outline-offset: 2px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); gap: 14px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 14px 18px;
  border-left: 4px solid var(--colour, var(--accent)); min-width: 0; }
.card b { display: block; font-size: 24px; line-height: 1.25; letter-spacing: -0.02em; }
.card span { color: var(--muted); font-size: 13.5px; overflow-wrap: anywhere; }
.scroll { overflow: auto; max-height: 480px; margin: 10px -4px 0; padding: 0 4px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th { position: sticky; top: 0; background: var(--card); color: var(--muted);
  font-weight: 600; font-size: 12.5px; text-align: right; vertical-align: bottom;
  padding: 6px 10px; border-bottom: 2px solid var(--line); }
td { text-align: right; padding: 8px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 2px; }
td:first-child { font-weight: 600; white-space: normal; overflow-wrap: break-word; }
tr:last-child td { border-bottom: 0; }
td.best { font-weight: 700; }
table.runs td { font-weight: 400; text-align: left; }
table.runs th { text-align: left; }
.name { display: inline-flex; align-items: baseline; gap: 8px; }
.swatch { flex: none; width: 11px; height: 11px; border-radius: 3px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 0 20px; }
.plot { width: 100%; min-width: 0; }
.empty { color: var(--muted); padding: 60px 0; text-align: center; }
details { border-top: 1px solid var(--line); padding: 9px 0; }
summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
summary small { color: var(--muted); font-weight: 400; margin-left: 6px; }
pre { background: var(--page); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px;
  overflow: auto; max-height: 460px; font-size: 12.5px; line-height: 1.45; }
footer { margin-top: 28px; font-size: 13px; }
@media (max-width: 640px) { main { padding: 24px 12px 40px; } section { padding: 16px 14px 12px; }
  h1 { font-size: 26px; } }
@media print { body { background: #fff; } section, .card { box-shadow: none; break-inside: avoid; }
  .controls { display: none; } }
"""

SCRIPT = """
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const config = { responsive: true, displaylogo: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
  const at = (id) => document.getElementById(id);

  function draw(id, figure, nothing) {
    const place = at(id);
    if (figure) {
      if (!place.classList.contains("js-plotly-plot")) place.replaceChildren();
      Plotly.react(place, figure.data, figure.layout, config);
    } else {
      Plotly.purge(place);
      const words = document.createElement("p");
      words.className = "empty";
      words.textContent = nothing;
      place.replaceChildren(words);
    }
  }

  const chosen = { axis: "time", measure: page.first_measure };
  function drawCurves() {
    const figure = page.curves[chosen.measure + "/" + chosen.axis];
    draw("curves", figure, "No " + chosen.measure + " was recorded.");
    for (const button of document.querySelectorAll(".switch button"))
      button.setAttribute("aria-pressed", String(chosen[button.dataset.sets] === button.dataset.to));
  }
  for (const button of document.querySelectorAll(".switch button"))
    button.addEventListener("click", () => {
      chosen[button.dataset.sets] = button.dataset.to;
      drawCurves();
    });
  drawCurves();

  const label = at("timeline-label"), seed = at("timeline-seed");
  function drawTimeline() {
    const timeline = page.timelines[label.selectedIndex].runs[seed.selectedIndex];
    draw("timeline", timeline.figure, "No client joined this run.");
    at("timeline-caption").textContent = timeline.caption;
  }
  function offerSeeds() {
    const runs = page.timelines[label.selectedIndex].runs;
    seed.replaceChildren(...runs.map((run) => new Option("seed " + run.seed)));
    drawTimeline();
  }
  for (const group of page.timelines) label.add(new Option(group.label));
  label.addEventListener("change", offerSeeds);
  seed.addEventListener("change", drawTimeline);
  offerSeeds();

  draw("staleness", page.staleness, "No update arrived.");
  draw("participation", page.participation, "No client joined.");
})();
"""
