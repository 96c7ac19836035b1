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

  const chosen = { axis: "time" }, measure = at("measure");
  measure.value = page.first_measure;
  function drawCurves() {
    const figure = page.curves[measure.value + "/" + chosen.axis];
    draw("curves", figure, "No " + (measure.value || page.first_measure) + " was recorded.");
    for (const button of document.querySelectorAll(".switch button"))
      button.setAttribute("aria-pressed", String(chosen[button.dataset.sets] === button.dataset.to));
  }
  for (const button of document.querySelectorAll(".switch button"))
    button.addEventListener("click", () => {
      chosen[button.dataset.sets] = button.dataset.to;
      drawCurves();
    });
  measure.addEventListener("change", drawCurves);
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

  if (page.clients) draw("clients", page.clients, "");
  if (page.privacy) draw("privacy", page.privacy, "");
  draw("staleness", page.staleness, "No update arrived.");
  draw("participation", page.participation, "No client joined.");
})();
